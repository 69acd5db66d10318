// Attention's two products on tiles, for a block of keys and up to sixteen queries.
//
// Queries and keys, weights and values are bfloat16, two to a word. Which of a product's factors is
// taken for its rows does not change a bit of it: its sums are those of AMX either way.
#pragma once

#if defined(__AMX_BF16__)

#include "keys.h"
#include "softmax.h"
#include "tile_shapes.h"

namespace baton {
namespace {

// Tiles 0 to 4 have a row per query, the others sixteen.
struct AttentionShapes : TileShapes {
    explicit AttentionShapes(int queries) {
        for (int tile = 0; tile < 8; ++tile) set(tile, tile < 5 ? queries : kTileRows, kTileBytes);
    }
};

// The compiler does not know that loading a tile reads memory.
inline void finish_writing() { asm volatile("" ::: "memory"); }

// out[n][key] = query[n] . key for `Keys` keys: queries are `stride` words apart, keys lie as
// [word][Keys]; `words` is a multiple of sixteen.
template <int Keys>
void score_on_tiles(const float* query, int stride, const float* keys, int words, float* out) {
    static_assert(Keys == 4 * kTileRows);
    constexpr int kRowBytes = Keys * sizeof(float);
    finish_writing();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int w = 0; w < words; w += kTileRows, keys += kTileRows * Keys) {
        _tile_loadd(4, query + w, stride * sizeof(float));
        _tile_loadd(5, keys, kRowBytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, keys + kTileRows, kRowBytes);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, keys + 2 * kTileRows, kRowBytes);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, keys + 3 * kTileRows, kRowBytes);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, out, kRowBytes);
    _tile_stored(1, out + kTileRows, kRowBytes);
    _tile_stored(2, out + 2 * kTileRows, kRowBytes);
    _tile_stored(3, out + 3 * kTileRows, kRowBytes);
}

// out[key][n] for sixteen keys that lie `bytes` apart, word by word, without packing. The
// queries are transposed, [word][16].
inline void score_keys_in_place(const void* keys, std::int64_t bytes, const float* transposed,
                                int words, float* out) {
    const auto* at = static_cast<const float*>(keys);
    finish_writing();
    _tile_zero(5);
    for (int w = 0; w < words; w += kTileRows) {
        _tile_loadd(6, at + w, bytes);
        _tile_loadd(7, transposed + w * kTileRows, kTileBytes);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_stored(5, out, kTileBytes);
}

// Four columns of sixteen rows of sixteen floats, from x on, as rows that are `stride` apart.
inline void transpose_four(const float* x, float* to, std::int64_t stride) {
    Vec rows[4];
    for (int i = 0; i < 4; ++i) {
        const auto at = [x, i](int part) { return _mm_loadu_ps(x + (4 * part + i) * kTileRows); };
        Vec row = _mm512_castps128_ps512(at(0));
        row = _mm512_insertf32x4(row, at(1), 1);
        row = _mm512_insertf32x4(row, at(2), 2);
        rows[i] = _mm512_insertf32x4(row, at(3), 3);
    }
    const IntVec a = low_words(as_int(rows[0]), as_int(rows[1]));
    const IntVec b = low_words(as_int(rows[2]), as_int(rows[3]));
    const IntVec c = high_words(as_int(rows[0]), as_int(rows[1]));
    const IntVec d = high_words(as_int(rows[2]), as_int(rows[3]));
    store(to, as_float(low_pairs(a, b)));
    store(to + stride, as_float(high_pairs(a, b)));
    store(to + 2 * stride, as_float(low_pairs(c, d)));
    store(to + 3 * stride, as_float(high_pairs(c, d)));
}

// sum[n] += weights[n] . values for W tiles of channels. Weights lie `stride` words apart, values
// as [word][dim], sums `dim` apart; `words` is a multiple of sixteen.
template <int W>
void weigh_on_tiles(const float* weights, int stride, const float* values, int words, int dim,
                    float* sum) {
    static_assert(W == 2 || W == 4);
    const std::int64_t bytes = dim * sizeof(float);
    finish_writing();
    _tile_loadd(0, sum, bytes);
    _tile_loadd(1, sum + kTileRows, bytes);
    if constexpr (W == 4) {
        _tile_loadd(2, sum + 2 * kTileRows, bytes);
        _tile_loadd(3, sum + 3 * kTileRows, bytes);
    }
    for (int w = 0; w < words; w += kTileRows, values += kTileRows * dim) {
        _tile_loadd(4, weights + w, stride * sizeof(float));
        _tile_loadd(5, values, bytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, values + kTileRows, bytes);
        _tile_dpbf16ps(1, 4, 6);
        if constexpr (W == 4) {
            _tile_loadd(7, values + 2 * kTileRows, bytes);
            _tile_dpbf16ps(2, 4, 7);
            _tile_loadd(5, values + 3 * kTileRows, bytes);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
    _tile_stored(0, sum, bytes);
    _tile_stored(1, sum + kTileRows, bytes);
    if constexpr (W == 4) {
        _tile_stored(2, sum + 2 * kTileRows, bytes);
        _tile_stored(3, sum + 3 * kTileRows, bytes);
    }
}

// All queries of a task, which are one tile of them, transposed: [word][16].
void transpose_queries(const float* query, int rows, int words, float* transposed) {
    for (int w = 0; w < words; w++)
        for (int r = 0; r < kTileRows; r++)
            transposed[w * kTileRows + r] = r < rows ? query[r * words + w] : 0.0f;
}

// Up to sixteen keys from `first` on, with the channels that pad them.
template <class P>
void copy_keys(const Located<P>& from, int first, const Width& width, Bf16* to) {
    Reader<Bf16, P> read(width.key);
    for (int i = first; i < first + kTileRows; i++, to += width.keys)
        for (int channel = 0; channel < width.keys; channel += 2 * kWidth) {
            const Vec some = i < from.count ? read(from.key[i], channel) : zero();
            store_bytes(reinterpret_cast<std::uint8_t*>(to + channel), as_int(some));
        }
}

// Scores [n][kBlock] of the transposed queries with keys that lie in pages, `step` apart within
// one.
// Those that tiles cannot read there are copied. Meanwhile the `next` keys are on their way.
template <class P>
void score_keys(const Located<P>& from, const Located<P>& next, int64_t step, const Width& width,
                const Room& room, int n, float* scores) {
    constexpr int kLast = kTileRows - 1;
    alignas(64) float products[kBlock * kTileRows];
    const auto lie = [&](int first) {
        return std::is_same_v<P, Bf16> && width.keys == width.key && first + kLast < from.count &&
               from.key[first + kLast] - from.key[first] == kLast * step;
    };
    for (int first = 0; first < from.count; first += kTileRows) {
        next.prefetch(first, kTileRows, 0, width.key);
        const void* keys = room.keys;
        int64_t bytes = width.keys * int64_t{sizeof(Bf16)};
        if (lie(first))
            keys = from.key[first], bytes = step * int64_t{sizeof(P)};
        else
            copy_keys(from, first, width, reinterpret_cast<Bf16*>(room.keys));
        score_keys_in_place(keys, bytes, room.transposed, width.keys / 2,
                            products + first * kTileRows);
    }
    for (int first = 0; first < from.count; first += kTileRows)
        for (int q = 0; q < n; q += 4)
            transpose_four(products + first * kTileRows + q, scores + q * kBlock + first, kBlock);
}

// As `attend_tile` for n <= 16 rows whose products with the block's keys are known.
void weigh_tile(int n, const Call& call, const QueryView* views, const Block& block, int dim,
                Softmax state, float* scores) {
    alignas(64) float fade[kWidth] = {};
    update_softmax<Bf16>(n, call, views, block, state, scores, fade);
    for (int r = 0; r < n; r++)
        for (int d = 0; d < dim; d += kWidth)
            store(state.sum + r * dim + d, load(state.sum + r * dim + d) * set1(fade[r]));
    const int words = round_up((block.count + 1) / 2, kTileRows);
    int d = 0;
    for (; d + 4 * kTileRows <= dim; d += 4 * kTileRows)
        weigh_on_tiles<4>(scores, kBlock, block.values + d, words, dim, state.sum + d);
    for (; d < dim; d += 2 * kTileRows)
        weigh_on_tiles<2>(scores, kBlock, block.values + d, words, dim, state.sum + d);
}

}  // namespace
}  // namespace baton

#endif
