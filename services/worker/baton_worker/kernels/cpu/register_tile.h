// Attention's two products in registers: a few queries, a block of keys.
#pragma once

#include "softmax.h"

namespace baton {
namespace {

constexpr int kTile = kWidth == 16 ? 6 : 3;  // query rows in a register tile
constexpr int kWide = 4;                     // registers of a register tile in a row

// out[n][key] = query[n] . key, for N query rows and a block of keys.
template <class X, int N>
void score(const float* query, const float* keys, int num_words, int stride, float* out) {
    for (int first = 0; first < kBlock; first += kWide * kWidth) {
        Vec sum[N][kWide];
        for (auto& row : sum)
            for (auto& x : row) x = zero();
        for (int w = 0; w < num_words; w++) {
            Vec key[kWide];
            for (int i = 0; i < kWide; i++)
                key[i] = load(keys + w * kBlock + first + i * kWidth);
            for (int n = 0; n < N; n++) {
                const Vec q = set1(query[n * stride + w]);
                for (int i = 0; i < kWide; i++) sum[n][i] = multiply_add<X>(q, key[i], sum[n][i]);
            }
        }
        for (int n = 0; n < N; n++)
            for (int i = 0; i < kWide; i++) store(out + n * kBlock + first + i * kWidth, sum[n][i]);
    }
}

// sum[n] = sum[n] * fade[n] + weights[n] . values, for N query rows and W registers of channels.
template <class X, int N, int W>
void weigh_some(const float* weights, const float* values, int num_words, int dim,
                const float* fade, float* sum) {
    Vec out[N][W];
    for (int n = 0; n < N; n++)
        for (int i = 0; i < W; i++)
            out[n][i] = load(sum + n * dim + i * kWidth) * set1(fade[n]);
    for (int w = 0; w < num_words; w++) {
        Vec value[W];
        for (int i = 0; i < W; i++) value[i] = load(values + w * dim + i * kWidth);
        for (int n = 0; n < N; n++) {
            const Vec weight = set1(weights[n * kBlock + w]);
            for (int i = 0; i < W; i++) out[n][i] = multiply_add<X>(weight, value[i], out[n][i]);
        }
    }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < W; i++) store(sum + n * dim + i * kWidth, out[n][i]);
}

template <class X, int N>
void weigh(const float* weights, const float* values, int num_words, int dim, const float* fade,
           float* sum) {
    int d = 0;
    for (; d + kWide * kWidth <= dim; d += kWide * kWidth)
        weigh_some<X, N, kWide>(weights, values + d, num_words, dim, fade, sum + d);
    for (; d < dim; d += 2 * kWidth)
        weigh_some<X, N, 2>(weights, values + d, num_words, dim, fade, sum + d);
}

// N query rows, `stride` words apart, to one block.
template <class X, int N>
void attend_tile(const Call& call, const QueryView* views, const float* query, int stride,
                 const Block& block, int dim, Softmax state) {
    static_assert(N <= kWidth, "the fades of a tile are one register");
    alignas(64) float scores[N * kBlock], fade[kWidth] = {};
    const int num_words = (call.head_dim + kPerWord<X> - 1) / kPerWord<X>;
    score<X, N>(query, block.keys, num_words, stride, scores);
    update_softmax<X>(N, call, views, block, state, scores, fade);
    const int used = (block.count + kPerWord<X> - 1) / kPerWord<X>;
    weigh<X, N>(scores, block.values, used, dim, fade, state.sum);
}

// As `attend_tile` for n <= N rows.
template <class X, int N = kTile>
void attend_rows(int n, const Call& call, const QueryView* views, const float* query, int stride,
                 const Block& block, int dim, Softmax state) {
    if (n == N)
        attend_tile<X, N>(call, views, query, stride, block, dim, state);
    else if constexpr (N > 1)
        attend_rows<X, N - 1>(n, call, views, query, stride, block, dim, state);
}

}  // namespace
}  // namespace baton
