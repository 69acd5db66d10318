// Norms over the last axis.

#include <cstdint>

#include "norm.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 16;  // values: some ten microseconds

// Mirrored in kernels/norm.py.
struct Norm {
    const float *weight, *bias;
    int32_t size, bytes, centered;
    float eps;
};

template <class T>
void norm(const Norm& how, const T* x, int64_t rows, T* y) {
    share(rows * how.size >= kWorthThreads, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            norm_row(x + row * how.size, how.weight, how.bias, how.eps, how.centered, how.size,
                     y + row * how.size);
    });
}

}  // namespace
}  // namespace baton

// x and y [rows, size], contiguous.
extern "C" void baton_norm(const baton::Norm* how, const void* x, int64_t rows, void* y) {
    using baton::Bf16;
    if (how->bytes == 4)
        baton::norm(*how, static_cast<const float*>(x), rows, static_cast<float*>(y));
    else
        baton::norm(*how, static_cast<const Bf16*>(x), rows, static_cast<Bf16*>(y));
}
