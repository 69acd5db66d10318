// The low-rank products of adapters: scale * B A x for each token, with the adapter of that token.
//
// Every sum of a token runs over the inner dimension in one order, so its bits depend neither on the
// tokens beside it nor on their adapters, and a token without an adapter is not touched.

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kMostRank = 512;          // mirrored in kernels/lora/products.py
constexpr int64_t kWorthThreads = 1 << 16;  // multiplications: some ten microseconds
constexpr int kTokens = kWidth == 16 ? 4 : 2;  // that pass a vector of the weights at once
constexpr int kRanks = 4;

// A and B of one part of a layer for one adapter. Mirrored in kernels/cpu/lora.py.
struct Pair {
    const void* a;  // [rank, depth]
    const void* b;  // [rank, columns of the part]
    int64_t rank;   // 0: the adapter leaves the part as it is
    float scale;
    int32_t padding;
};

struct Lora {
    const Pair* pairs;       // [adapters, parts]
    const int32_t* adapters; // of every token of the step, below 0 for none
    const int64_t* ends;     // [parts]: the last column of each part, and one
    int64_t parts, depth, columns;
    int32_t bytes;      // of a number of x and of the weights
    int32_t out_bytes;  // of a number of the result
    int32_t adds;       // to what is in the result, instead of replacing it
};

// Rows of up to kRanks of A times up to kTokens tokens.
template <int M, int N, class T>
void dots(const T* a, int64_t depth, const T* const* x, float (*to)[kMostRank]) {
    Vec sums[M][N];
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) sums[m][n] = zero();
    const auto step = [&](int64_t k, auto read) {
        Vec rows[N];
        for (int n = 0; n < N; ++n) rows[n] = read(a + n * depth + k);
        for (int m = 0; m < M; ++m) {
            const Vec given = read(x[m] + k);
            for (int n = 0; n < N; ++n) sums[m][n] = fma(given, rows[n], sums[m][n]);
        }
    };
    int64_t k = 0;
    for (; k + kWidth <= depth; k += kWidth) step(k, [](const T* p) { return load(p); });
    const int rest = static_cast<int>(depth - k);
    if (rest > 0) step(k, [rest](const T* p) { return load_some(p, rest); });
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) to[m][n] = sum(sums[m][n]);
}

template <int M, class T>
void shrink(const Pair& pair, int64_t depth, const T* const* x, float (*to)[kMostRank]) {
    const T* a = static_cast<const T*>(pair.a);
    int64_t j = 0;
    // Rows of `to` are kMostRank apart wherever they begin.
    const auto at = [&] { return reinterpret_cast<float(*)[kMostRank]>(&to[0][j]); };
    for (; j + kRanks <= pair.rank; j += kRanks) dots<M, kRanks>(a + j * depth, depth, x, at());
    for (; j < pair.rank; ++j) dots<M, 1>(a + j * depth, depth, x, at());
    for (int m = 0; m < M; ++m)
        for (j = 0; j < pair.rank; ++j) to[m][j] *= pair.scale;
}

template <int M, class T, class Out>
void expand(const Pair& pair, int64_t columns, const float (*low)[kMostRank], bool adds,
            Out* const* to) {
    const T* b = static_cast<const T*>(pair.b);
    for (int64_t n = 0; n < columns; n += kWidth) {
        const int count = static_cast<int>(std::min<int64_t>(kWidth, columns - n));
        Vec sums[M];
        for (int m = 0; m < M; ++m) sums[m] = zero();
        for (int64_t j = 0; j < pair.rank; ++j) {
            const T* row = b + j * columns + n;
            const Vec weights = count == kWidth ? load(row) : load_some(row, count);
            for (int m = 0; m < M; ++m) sums[m] = fma(set1(low[m][j]), weights, sums[m]);
        }
        for (int m = 0; m < M; ++m) {
            if (adds) sums[m] = add(load_some(to[m] + n, count), sums[m]);
            store_some(to[m] + n, sums[m], count);
        }
    }
}

// M tokens of one adapter.
template <int M, class T, class Out>
void adapt(const Lora& how, const Pair* pairs, const T* x, int64_t stride, Out* out) {
    thread_local float low[M][kMostRank];
    const T* given[M];
    for (int m = 0; m < M; ++m) given[m] = x + m * stride;
    for (int64_t part = 0, first = 0; part < how.parts; first = how.ends[part++]) {
        if (pairs[part].rank == 0 && how.adds) continue;
        shrink<M>(pairs[part], how.depth, given, low);
        Out* to[M];
        for (int m = 0; m < M; ++m) to[m] = out + m * how.columns + first;
        expand<M, T>(pairs[part], how.ends[part] - first, low, how.adds, to);
    }
}

// Some tokens: neighbours of one adapter go together.
template <class T, class Out>
void adapt_some(const Lora& how, int64_t begin, int64_t end, const T* x, int64_t stride,
                Out* out) {
    while (begin < end) {
        const int32_t adapter = how.adapters[begin];
        int64_t count = 1;
        while (count < kTokens && begin + count < end && how.adapters[begin + count] == adapter)
            ++count;
        if (count == 3) count = 2;
        if (adapter >= 0) {
            const Pair* pairs = how.pairs + adapter * how.parts;
            const T* from = x + begin * stride;
            Out* to = out + begin * how.columns;
            if (count == 4) adapt<4>(how, pairs, from, stride, to);
            if (count == 2) adapt<2>(how, pairs, from, stride, to);
            if (count == 1) adapt<1>(how, pairs, from, stride, to);
        }
        begin += count;
    }
}

template <class T, class Out>
void run(const Lora& how, const void* x, int64_t tokens, int64_t stride, void* out) {
    int64_t adapted = 0;
    for (int64_t i = 0; i < tokens; ++i) adapted += how.adapters[i] >= 0;
    if (adapted == 0) return;
    const int64_t groups = (tokens + kTokens - 1) / kTokens;
    const bool worth = adapted * (how.depth + how.columns) * 16 >= kWorthThreads;
    share(worth, groups, [&](int64_t begin, int64_t end) {
        adapt_some(how, begin * kTokens, std::min(end * kTokens, tokens),
                   static_cast<const T*>(x), stride, static_cast<Out*>(out));
    });
}

}  // namespace
}  // namespace baton

// x [tokens, depth] with `stride` numbers between rows; out [tokens, columns], contiguous.
extern "C" void baton_lora(const baton::Lora* how, const void* x, int64_t tokens, int64_t stride,
                           void* out) {
    using baton::Bf16;
    if (how->bytes == 4) return baton::run<float, float>(*how, x, tokens, stride, out);
    if (how->out_bytes == 4) return baton::run<Bf16, float>(*how, x, tokens, stride, out);
    baton::run<Bf16, Bf16>(*how, x, tokens, stride, out);
}
