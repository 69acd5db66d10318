// Products with floats and with the blocks that most checkpoints have (row_product.h, formats.h).

#include "compacting.h"
#include "row_product.h"

extern "C" {

#if defined(__AMX_BF16__)
// Whether this process may use tiles from now on.
bool baton_tiles_permitted() { return baton::permitted(); }
// Whether their products are right. Where there are none this ends the process.
bool baton_tiles_are_right() { return baton::tiles_are_right(); }
#endif

// Floats in a vector: a panel has twice as many columns.
int baton_linear_width() { return baton::kWidth; }

// x [rows, depth] with `stride` elements between rows; residual (or null) and out [rows, columns]
// with the weight's stride.
void baton_linear(const baton::Weight* weight, const void* x, std::int64_t rows,
                  std::int64_t stride, const void* residual, void* out) {
    const baton::Call call{*weight, x, stride, residual, out};
    switch (weight->kind) {
        case baton::kFloat32:
            if (weight->input_is_float)
                return baton::Product<baton::Float32, baton::FloatArithmetic, float>(call).run(rows);
            return baton::Product<baton::Float32, baton::FloatArithmetic, baton::Bf16>(call).run(rows);
        case baton::kBfloat16: return baton::run<baton::Bfloat16>(call, rows);
        case baton::kInt8: return baton::run<baton::Int8>(call, rows);
        case baton::kInt4: return baton::run<baton::Int4>(call, rows);
        case baton::kInt4Minimum: return baton::run<baton::Int4Minimum>(call, rows);
        case baton::kInt4Super: return baton::run<baton::Int4Super>(call, rows);
        case baton::kInt6Super: return baton::run<baton::Int6Super>(call, rows);
        case baton::kInt4Offset: return baton::run<baton::Int4Offset>(call, rows);
        case baton::kMxfp4: return baton::run<baton::Mxfp4>(call, rows);
        case baton::kNvfp4: return baton::run<baton::Nvfp4>(call, rows);
        case baton::kFp8: return baton::run<baton::Fp8>(call, rows);
        case baton::kCompact: return baton::run<baton::Compact>(call, rows);
    }
}

// Whether expanding costs less than the memory that is not read, few rows or many. With vectors of
// eight floats arithmetic decides from a few rows on.
bool baton_compact_pays() { return baton::kWidth == 16; }

// Bytes of a compact panel, and the segments that have exceptions of their own.
std::int64_t baton_compact_bytes(std::int64_t depth) {
    return baton::units_of(depth) * baton::kUnitBytes;
}
std::int64_t baton_compact_segments(std::int64_t depth) { return baton::segments_of(depth); }

// bases int32 [panels, columns] and counts uint32 [panels, segments] of a bfloat16 weight.
void baton_compact_count(const baton::Original* from, std::int32_t* bases, std::uint32_t* counts) {
    baton::count(*from, bases, counts);
}

// Write units and exceptions, for what has been counted; false if it was another weight.
bool baton_compact_write(const baton::Original* from, const std::int32_t* bases,
                         const std::uint32_t* starts, std::uint8_t* units,
                         baton::Exception* exceptions) {
    const baton::CompactPanels to{units, bases, starts, exceptions, from->depth};
    return baton::compact(*from, to, units, exceptions);
}

// Rows of a compact weight that has no gate: out [count, depth]. There is no row of another number,
// what is copied for it is not a number.
void baton_compact_rows(const baton::Weight* weight, const std::int64_t* numbers,
                        std::int64_t count, baton::Bf16* out) {
    const baton::CompactPanels panels = weight->compact();
    const bool worth = count * weight->depth > 16384;
    baton::share(worth, count, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i) {
            baton::Bf16* row = out + i * weight->depth;
            if (numbers[i] < 0 || numbers[i] >= weight->columns) {
                std::fill(row, row + weight->depth, baton::Bf16{0x7fc0});
            } else {
                baton::copy_row(panels, numbers[i], row);
            }
        }
    });
}

}  // extern "C"
