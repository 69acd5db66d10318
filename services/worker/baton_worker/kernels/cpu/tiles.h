// What tiles do for a product of weights.
#pragma once

#if defined(__AMX_BF16__)

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "compact.h"
#include "tile_shapes.h"

namespace baton {
namespace {

constexpr int kPairBytes = 2 * kVectorBytes;  // of a panel's weights, for two values of k
static_assert(kColumns == 2 * kTileRows);

// Sums 0 to 3, rows of x 4 and 5, weights 6 and 7. `depth` is the values of k in a tile.
struct ProductShapes : TileShapes {
    ProductShapes(int rows_of_x, int depth) {
        for (int tile = 0; tile < 8; ++tile) {
            const bool of_x = tile == 4 || tile == 5;
            set(tile, tile < 6 ? rows_of_x : depth / 2, of_x ? 2 * depth : kTileBytes);
        }
    }
};

// Sums of one tile of rows, or of two, for the two tiles of a panel's columns.
template <bool Two>
void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Two) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

// Sums of a block of rows: [row][column].
struct alignas(64) BlockSums {
    float values[2 * kTileRows][kColumns];

    template <bool Two>
    void load() const {
        // The compiler does not know that loading a tile reads memory.
        asm volatile("" ::: "memory");
        _tile_loadd(0, values[0], sizeof values[0]);
        _tile_loadd(1, values[0] + kWidth, sizeof values[0]);
        if constexpr (Two) {
            _tile_loadd(2, values[kTileRows], sizeof values[0]);
            _tile_loadd(3, values[kTileRows] + kWidth, sizeof values[0]);
        }
    }

    template <bool Two>
    void store() {
        _tile_stored(0, values[0], sizeof values[0]);
        _tile_stored(1, values[0] + kWidth, sizeof values[0]);
        if constexpr (Two) {
            _tile_stored(2, values[kTileRows], sizeof values[0]);
            _tile_stored(3, values[kTileRows] + kWidth, sizeof values[0]);
        }
    }

    Pair row(int number) const {
        return {baton::load(values[number]), baton::load(values[number] + kWidth)};
    }

    void set(int number, Pair sums) {
        baton::store(values[number], sums.left);
        baton::store(values[number] + kWidth, sums.right);
    }
};

// Add rows times weights. `x` holds tiles of rows one after the other, `size` elements each.
template <bool Two, int Depth>
void add_product(const std::uint8_t* weights, const Bf16* x, std::int64_t size) {
    constexpr int kRowBytes = 2 * Depth;
    // As in BlockSums::load.
    asm volatile("" ::: "memory");
    _tile_loadd(4, x, kRowBytes);
    _tile_loadd(6, weights, kPairBytes);
    if constexpr (Two) _tile_loadd(5, x + size, kRowBytes);
    _tile_loadd(7, weights + kVectorBytes, kPairBytes);
    // One after the other with the same weights.
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Two) _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (Two) _tile_dpbf16ps(3, 5, 7);
}

// ---- Whether they can be used

// Ask the system for this process's leave to use tiles, which Linux gives since 5.16.
inline bool permitted() {
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// Multiply small whole numbers, whose sums are exact.
inline bool tiles_are_right() {
    constexpr int kDepth = 2 * kTileRows;
    alignas(64) Bf16 x[2 * kTileRows][kDepth], weights[kTileRows][kColumns][2];
    const auto bf16 = [](int n) {
        const float value = static_cast<float>(n);
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return static_cast<Bf16>(bits >> 16);
    };
    const auto left = [](int row, int k) { return (row + 3 * k) % 7 - 3; };
    const auto right = [](int k, int column) { return (2 * k + 5 * column) % 9 - 4; };
    for (int k = 0; k < kDepth; ++k) {
        for (int row = 0; row < 2 * kTileRows; ++row) x[row][k] = bf16(left(row, k));
        for (int n = 0; n < kColumns; ++n) weights[k / 2][n][k % 2] = bf16(right(k, n));
    }
    BlockSums sums;
    const ProductShapes shapes(kTileRows, kDepth);
    const Tiles tiles(shapes);
    clear_sums<true>();
    const auto* some = reinterpret_cast<const std::uint8_t*>(weights);
    add_product<true, kDepth>(some, x[0], kTileRows * kDepth);
    sums.store<true>();
    for (int row = 0; row < 2 * kTileRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
            int expected = 0;
            for (int k = 0; k < kDepth; ++k) expected += left(row, k) * right(k, column);
            if (sums.values[row][column] != static_cast<float>(expected)) return false;
        }
    }
    return true;
}

}  // namespace
}  // namespace baton

#endif
