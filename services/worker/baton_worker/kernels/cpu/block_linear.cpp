// Products with blocks that few checkpoints have (narrow_codes.h): a library of its own, so that only
// a worker that loads one waits for its compiler.

#include "narrow_codes.h"
#include "row_product.h"

extern "C" {

// As in linear.cpp.
void baton_linear(const baton::Weight* weight, const void* x, std::int64_t rows,
                  std::int64_t stride, const void* residual, void* out) {
    const baton::Call call{*weight, x, stride, residual, out};
    switch (weight->kind) {
        case baton::kInt5: return baton::run<baton::Int5>(call, rows);
        case baton::kInt5Minimum: return baton::run<baton::Int5Minimum>(call, rows);
        case baton::kInt5Super: return baton::run<baton::Int5Super>(call, rows);
        case baton::kInt3Super: return baton::run<baton::Int3Super>(call, rows);
        case baton::kInt2Super: return baton::run<baton::Int2Super>(call, rows);
        case baton::kTernary: return baton::run<baton::Ternary>(call, rows);
        case baton::kIq4: return baton::run<baton::Iq4>(call, rows);
        case baton::kIq4Super: return baton::run<baton::Iq4Super>(call, rows);
        case baton::kIq3XxsSuper: return baton::run<baton::Iq3XxsSuper>(call, rows);
        case baton::kIq3SSuper: return baton::run<baton::Iq3SSuper>(call, rows);
        case baton::kIq2Super: return baton::run<baton::Iq2Super>(call, rows);
        case baton::kIq1Super: return baton::run<baton::Iq1Super>(call, rows);
        case baton::kNf4:
            if (!weight->input_is_float) return baton::run<baton::Nf4Rounded>(call, rows);
            return baton::Product<baton::Nf4, baton::FloatArithmetic, float>(call).run(rows);
        case baton::kFp4: return baton::run<baton::Fp4>(call, rows);
        case baton::kInt8Float: return baton::run<baton::Int8Float>(call, rows);
    }
}

}  // extern "C"
