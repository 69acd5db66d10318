// Attention over pages, for decode and prefill in one call.
//
// Pages hold head_dim numbers per key and value_dim per value of a head, or as many codes and 4
// bytes, in the order that their strides say (pages.h). A block of keys is packed from wherever
// they are, codes become numbers then, and from there on nothing differs.
//
// What a token's output is does not depend on the batch, on how its prompt was cut into chunks, or
// on the number of threads, to the last bit. That follows from three rules:
//   * Keys are taken in blocks, and blocks in partitions, both counted from position 0. A softmax
//     runs over the blocks of a partition in their order (online, Milakov and Gimelshein 2018,
//     arXiv:1805.02867), and partitions are merged in their order.
//   * Within a block, each (query, key) score is one chain of multiply-adds over the channels, and
//     each (query, channel) result one chain over the keys. A register tile holds many such chains
//     side by side and never splits one.
//   * A key that a query may not see weighs exactly 0, and a block of such keys changes nothing.
//
// A key head is read once for all query heads that share it.
//
// Where the CPU has tiles, both products of bfloat16 run on them. Such a chain takes what lies at
// even places and at odd ones apart, 32 at a time, whichever factor has the tile's rows: keys as
// they lie in their page where queries are few, else packed as they are without tiles.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "pages.h"
#include "team.h"
#include "tile_attention.h"

namespace baton {
namespace {

constexpr int kBlock = 64;        // keys that are packed together
constexpr int kPartition = 256;   // keys that are accumulated before a merge
constexpr int kQueryRows = 96;    // (token, head) pairs that use a packed block
constexpr int kPadding = 32;      // channels: a whole number of registers in every layout
constexpr int kTile = kWidth == 16 ? 6 : 3;  // query rows in a register tile
constexpr int kWide = 4;                     // registers of a register tile in a row
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The static facts of a layer; mirrored in attention/cpu.py.
struct Call {
    int32_t num_heads, num_kv_heads, head_dim, value_dim;
    int32_t window, chunk;  // 0: none, see AttentionCall
    float scale, softcap;   // softcap 0: none
    const float* slopes;    // per query head; may be null
    int32_t bytes;          // of an element: 2 is bfloat16, 4 is float
    int32_t codes;          // of the pages: 0 such elements, 1 Int8, 2 Fp8
};

// A ragged step; mirrored in attention/cpu.py. See AttentionBatch.
struct Batch {
    int32_t rows, page_size, table_width;
    const int32_t *query_starts, *lengths, *page_table;
    const int32_t* ranges;     // per row [from, to) of the keys that take part; may be null: all
    const uint64_t* ancestors;  // per token, see attention/trees.py; may be null: no row is a tree
    const int32_t* depths;     // per token
};

// One piece of work: some query tokens of a row, one key head, the keys of some partitions.
struct Task {
    int32_t row, head, first, tokens;
    int32_t begin, end;  // keys; begin is a multiple of kPartition
    int32_t partial;     // index of the unfinished result; -1: the result is final
};

// What queries need after some keys: the greatest score, the sum of weights, weighted values.
struct Softmax {
    float *most, *total, *sum;
};

int round_up(int x, int to) { return (x + to - 1) / to * to; }

// ---- operands -----------------------------------------------------------------------------------
// A product works on 32-bit words: one float, or two bfloat16 where the CPU multiplies such pairs.

template <class X>
constexpr int kPerWord = sizeof(float) / sizeof(X);

template <class X>
Vec multiply_add(Vec a, Vec b, Vec sum) {
    return fma(a, b, sum);
}

// The next kWidth words of a row of T, as raw bits.
template <class X, class T>
Vec words(const T* from) {
    return load(from);
}

// The next kWidth words of a row of codes.
template <class X, class P>
Vec words(const P* from, float scale) {
    return P::decode(from) * set1(scale * P::kUnit);
}

// Values of two tokens to words; `a` is the earlier. Writes kWidth * kPerWord words.
template <class X>
void interleave(Vec a, Vec, float* to) {
    store(to, a);
}

#if defined(__AVX512BF16__)

using Fast = Bf16;

template <>
Vec multiply_add<Bf16>(Vec a, Vec b, Vec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

template <>
Vec words<Bf16, Bf16>(const Bf16* from) {
    return _mm512_loadu_ps(from);
}

template <>
void interleave<Bf16>(Vec a, Vec b, float* to) {
    alignas(64) static constexpr uint16_t kLow[32] = {
        0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
        8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kLow);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __m512i x = as_int(a), y = as_int(b);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(x, low, y));
    _mm512_storeu_si512(to + kWidth, _mm512_permutex2var_epi16(x, high, y));
}

// Two registers of numbers, those of the earlier channels first, to pairs.
inline Vec as_pairs(Vec first, Vec second) {
    return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(second, first));
}

template <>
Vec words<Bf16, Int8>(const Int8* from, float scale) {
    const Vec unit = set1(scale * Int8::kUnit);
    return as_pairs(Int8::decode(from) * unit, Int8::decode(from + kWidth) * unit);
}

template <>
Vec words<Bf16, Fp8>(const Fp8* from, float scale) {
    const Vec unit = set1(scale * Fp8::kUnit);
    return as_pairs(Fp8::decode(from) * unit, Fp8::decode(from + kWidth) * unit);
}

#else

using Fast = float;

#endif

#if defined(__AMX_BF16__)
template <class X>
constexpr bool kTiled = sizeof(X) == sizeof(Bf16);
constexpr int kRowsTogether = kTileRows;
#else
template <class X>
constexpr bool kTiled = false;
constexpr int kRowsTogether = 1;
#endif

// Rows of queries and of their sums that there must be room for: tiles write whole tiles.
constexpr int with_room(int rows) {
    return (rows + kRowsTogether - 1) / kRowsTogether * kRowsTogether;
}

// ---- scratch ------------------------------------------------------------------------------------

// Memory of one thread, reused by every call.
class Scratch {
   public:
    float* take(size_t floats) {
        const size_t begin = used_;
        used_ += (floats + 15) / 16 * 16;
        return data_.get() + begin;
    }
    void reset(size_t floats) {
        used_ = 0;
        if (floats <= size_) return;
        size_ = floats;
        data_.reset(static_cast<float*>(std::aligned_alloc(64, (floats * 4 + 63) / 64 * 64)));
        std::fill_n(data_.get(), floats, 0.0f);
    }

   private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> data_;
    size_t size_ = 0, used_ = 0;
};

thread_local Scratch scratch;

Softmax take_softmax(Scratch& from, int rows, int dim) {
    Softmax state;
    state.most = from.take(rows);
    state.total = from.take(rows);
    state.sum = from.take(size_t(with_room(rows)) * dim);
    return state;
}

// Floats of a Softmax at most.
size_t softmax_size(int rows, int dim) { return size_t(with_room(rows)) * (dim + 2) + 64; }

void clear(Softmax& state, int rows, int dim) {
    std::fill_n(state.most, rows, kHidden);
    std::fill_n(state.total, rows, 0.0f);
    std::fill_n(state.sum, size_t(rows) * dim, 0.0f);
}

// ---- keys and values of a block -----------------------------------------------------------------

// Where the keys of up to kBlock tokens in a row are. Values follow at a fixed distance.
template <class P>
struct Located {
    const P* key[kBlock];
    int count;

    Located(const Batch& batch, const P* pages, const Strides& strides, int row, int head,
            int begin, int end)
        : count(end - begin) {
        const int32_t* table = batch.page_table + int64_t(row) * batch.table_width;
        const P* first = pages + head * strides.head;
        int page = begin / batch.page_size, offset = begin % batch.page_size;
        for (int i = 0; i < count; i++) {
            key[i] = first + table[page] * strides.page + offset * strides.token;
            if (++offset == batch.page_size) offset = 0, page++;
        }
    }

    // Ask for some keys, or with their distance for values, before they are needed.
    void prefetch(int first, int some, int64_t distance, int channels) const {
        for (int i = first; i < std::min(first + some, count); i++)
            for (int d = 0; d < channels + kScale<P>; d += 64 / int(sizeof(P)))
                __builtin_prefetch(key[i] + distance + d, 0, 2);
    }
};

// Reads rows of some channels in whole registers, where that would overrun by way of a copy.
template <class X, class P>
class Reader {
   public:
    explicit Reader(int channels) : dim_(channels) {}
    Vec operator()(const P* row, int channel) {
        if (channel >= dim_) return zero();
        if (channel + kStep <= dim_) return numbers(row, row + channel);
        std::copy(row + channel, row + dim_, copy_);
        return numbers(row, copy_);
    }

   private:
    Vec numbers(const P* row, const P* from) const {
        if constexpr (kScale<P> == 0) {
            return words<X>(from);
        } else {
            float scale;
            std::memcpy(&scale, row + dim_, sizeof scale);
            return words<X>(from, scale);
        }
    }

    static constexpr int kStep = kWidth * kPerWord<X>;
    int dim_;
    P copy_[kStep] = {};
};

// Channels of a key and a value, each also rounded up to whole registers.
struct Width {
    int key, value, keys, values;

    explicit Width(const Call& call)
        : key(call.head_dim),
          value(call.value_dim),
          keys(round_up(key, kPadding)),
          values(round_up(value, kPadding)) {}
};

// A block of keys, `dim` channels with those that pad them, as [word][key]. Meanwhile the keys of
// the `next` block are on their way: no hardware guesses where its page is.
template <class X, class P>
void pack_keys(const Located<P>& from, const Located<P>& next, int head_dim, int dim, float* keys) {
    Reader<X, P> read(head_dim);
    constexpr int step = kWidth * kPerWord<X>;
    for (int first = 0; first < from.count; first += kWidth) {
        next.prefetch(first, kWidth, 0, head_dim);
        for (int channel = 0; channel < dim; channel += step) {
            Vec square[kWidth];
            for (int i = 0; i < kWidth; i++)
                square[i] =
                    first + i < from.count ? read(from.key[first + i], channel) : zero();
            transpose(square);
            for (int i = 0; i < kWidth; i++)
                store(keys + (channel / kPerWord<X> + i) * kBlock + first, square[i]);
        }
    }
}

// As `pack_keys` for values, which lie at a `distance` from keys, as [key / kPerWord][channel].
template <class X, class P>
void pack_values(const Located<P>& from, const Located<P>& next, int64_t distance, int value_dim,
                 int dim, float* values) {
    Reader<X, P> read(value_dim);
    constexpr int step = kWidth * kPerWord<X>;
    for (int i = 0; i < from.count; i += kPerWord<X>) {
        next.prefetch(i, kPerWord<X>, distance, value_dim);
        for (int channel = 0; channel < dim; channel += step) {
            const bool paired = kPerWord<X> == 2 && i + 1 < from.count;
            const Vec a = read(from.key[i] + distance, channel);
            const Vec b = paired ? read(from.key[i + 1] + distance, channel) : zero();
            interleave<X>(a, b, values + i / kPerWord<X> * dim + channel);
        }
    }
    if constexpr (kTiled<X>) {
        const int words = (from.count + 1) / 2;
        std::fill_n(values + words * dim, (round_up(words, kRowsTogether) - words) * dim, 0.0f);
    }
}

// ---- register tiles -----------------------------------------------------------------------------

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

// ---- softmax ------------------------------------------------------------------------------------

// A query row: its token's position, the first position that it may see, the first and the last
// slot of its sequence that it may see, which of its row's new tokens, the slope of its head. Slots
// and positions are the same but for the new tokens of a tree.
struct Asker {
    int position, oldest, first, last;
    uint64_t ancestors;
    float slope;

    bool sees_none(int begin, int end) const {
        return last < begin || std::max(first, oldest) >= end;
    }
};

// A packed block: `count` keys from slot `begin` on. Where there are new tokens of a tree in it:
// their depths, the first of them at slot `start`; else null.
struct Block {
    const float *keys, *values;
    int begin, count;
    const int32_t* depths;
    int start;
};

constexpr int kMostBits = 64;      // new tokens that ancestors may leave out
constexpr float kAhead = 1 << 30;  // a position that nobody may see

// Positions [kBlock] of the keys of a block with new tokens of a tree, counted from its begin: to
// who does not see a key it lies ahead.
void place_keys(const Asker& asker, const Block& block, float* places) {
    for (int i = 0; i < kBlock; i++) {
        const int slot = block.begin + i, fresh = slot - block.start;
        const bool hidden = slot < asker.first || slot > asker.last ||
                            (fresh >= 0 && fresh < kMostBits && !(asker.ancestors >> fresh & 1));
        if (hidden)
            places[i] = kAhead;
        else
            places[i] = fresh < 0 ? i : block.start + block.depths[fresh] - block.begin;
    }
}

// cap * tanh(x / cap).
Vec bend(Vec x, const Call& call) {
    const Vec one = set1(1.0f);
    const Vec e = exp(x * set1(2.0f / call.softcap));
    return set1(call.softcap) * (one - set1(2.0f) / (e + one));
}

// As `finish_scores` for a token that sees what is in [oldest, newest], counted from the block's
// begin. So are the `places` of keys; without a tree they are one behind the other.
template <bool kTree>
float finish_some(const Call& call, const Asker& asker, const Block& block, int oldest, int newest,
                  const float* places, float* scores) {
    const bool whole = !kTree && oldest <= 0 && kBlock <= newest + 1;
    const Vec low = set1(float(oldest)), high = set1(float(newest));
    const Vec here = set1(float(asker.position - block.begin));
    Vec most = set1(kHidden);
    for (int i = 0; i < kBlock; i += kWidth) {
        const Vec key = kTree ? load(places + i) : count_up() + set1(float(i));
        Vec x = load(scores + i) * set1(call.scale);
        if (call.softcap > 0) x = bend(x, call);
        if (call.slopes) x = fma(set1(asker.slope), key - here, x);
        if (!whole) x = within(key, low, high, x, set1(kHidden));
        store(scores + i, x);
        most = max(most, x);
    }
    return largest(most);
}

// Products [kBlock] to scores, hidden ones at -inf; returns the greatest.
float finish_scores(const Call& call, const Asker& asker, const Block& block, float* scores) {
    if (block.depths == nullptr) {
        const int oldest = std::max(asker.oldest, asker.first) - block.begin;
        return finish_some<false>(call, asker, block, oldest, asker.last - block.begin, nullptr,
                                  scores);
    }
    alignas(64) float places[kBlock];
    place_keys(asker, block, places);
    return finish_some<true>(call, asker, block, asker.oldest - block.begin,
                             asker.position - block.begin, places, scores);
}

// Scores [kBlock] to weights as words of X, in place; returns their sum as the product sees them.
template <class X>
float finish_weights(float* scores, float most) {
    X* weights = reinterpret_cast<X*>(scores);
    Vec total = zero();
    for (int i = 0; i < kBlock; i += kWidth) {
        store(weights + i, exp(load(scores + i) - set1(most)));
        total = total + load(weights + i);
    }
    return sum(total);
}

float exp_one(float x) {
    alignas(64) float out[kWidth];
    store(out, exp(set1(x)));
    return out[0];
}

// Nothing seen yet is -inf, and -inf - -inf is no number: measured from 0 it weighs 0, as it must.
float base_of(float most) { return most == kHidden ? 0.0f : most; }

// The products [n][kBlock] of n queries with a block become weights, in place; `fade` is what is
// left of their sums so far.
template <class X>
void soften(int n, const Call& call, const Asker* askers, const Block& block, Softmax state,
            float* scores, float* fade) {
    float most[kWidth];
    for (int i = 0; i < n; i++) {
        const float greatest = finish_scores(call, askers[i], block, scores + i * kBlock);
        // NaN must win, so that a broken sequence shows.
        most[i] = greatest <= state.most[i] ? state.most[i] : greatest;
        fade[i] = state.most[i] - base_of(most[i]);
    }
    store(fade, exp(load(fade)));
    for (int i = 0; i < n; i++) {
        const float added = finish_weights<X>(scores + i * kBlock, base_of(most[i]));
        state.total[i] = state.total[i] * fade[i] + added;
        state.most[i] = most[i];
    }
}

// N query rows, `stride` words apart, to one block.
template <class X, int N>
void attend_tile(const Call& call, const Asker* askers, const float* query, int stride,
                 const Block& block, int dim, Softmax state) {
    static_assert(N <= kWidth, "the fades of a tile are one register");
    alignas(64) float scores[N * kBlock], fade[kWidth] = {};
    const int num_words = (call.head_dim + kPerWord<X> - 1) / kPerWord<X>;
    score<X, N>(query, block.keys, num_words, stride, scores);
    soften<X>(N, call, askers, block, state, scores, fade);
    const int used = (block.count + kPerWord<X> - 1) / kPerWord<X>;
    weigh<X, N>(scores, block.values, used, dim, fade, state.sum);
}

// As `attend_tile` for n <= N rows.
template <class X, int N = kTile>
void attend_rows(int n, const Call& call, const Asker* askers, const float* query, int stride,
                 const Block& block, int dim, Softmax state) {
    if (n == N)
        attend_tile<X, N>(call, askers, query, stride, block, dim, state);
    else if constexpr (N > 1)
        attend_rows<X, N - 1>(n, call, askers, query, stride, block, dim, state);
}

// Memory of a task: its queries [row][word], and turned if they are one tile; a packed block.
struct Room {
    float *query, *turned, *keys, *values;
};

// ---- tiles --------------------------------------------------------------------------------------
#if defined(__AMX_BF16__)

// All queries of a task, which are one tile of them, turned: [word][16].
void turn_queries(const float* query, int rows, int words, float* turned) {
    for (int w = 0; w < words; w++)
        for (int r = 0; r < kTileRows; r++)
            turned[w * kTileRows + r] = r < rows ? query[r * words + w] : 0.0f;
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

// Scores [n][kBlock] of the turned queries with keys that lie in pages, `step` apart within one.
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
        score_lying_keys(keys, bytes, room.turned, width.keys / 2, products + first * kTileRows);
    }
    for (int first = 0; first < from.count; first += kTileRows)
        for (int q = 0; q < n; q += 4)
            turn_four(products + first * kTileRows + q, scores + q * kBlock + first, kBlock);
}

// As `attend_tile` for n <= 16 rows whose products with the block's keys are known.
void weigh_tile(int n, const Call& call, const Asker* askers, const Block& block, int dim,
                Softmax state, float* scores) {
    alignas(64) float fade[kWidth] = {};
    soften<Bf16>(n, call, askers, block, state, scores, fade);
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

#endif

// into += from, for one query row.
void merge_row(Softmax into, Softmax from, int r, int dim) {
    const float most = from.most[r] <= into.most[r] ? into.most[r] : from.most[r];
    const float old = exp_one(into.most[r] - base_of(most));
    const float fresh = exp_one(from.most[r] - base_of(most));
    into.most[r] = most;
    into.total[r] = into.total[r] * old + from.total[r] * fresh;
    float *a = into.sum + int64_t(r) * dim, *b = from.sum + int64_t(r) * dim;
    for (int d = 0; d < dim; d += kWidth) {
        const Vec faded = load(a + d) * set1(old);
        store(a + d, fma(load(b + d), set1(fresh), faded));
    }
}

void merge(Softmax into, Softmax from, int rows, int dim) {
    for (int r = 0; r < rows; r++) merge_row(into, from, r, dim);
}

// ---- tasks --------------------------------------------------------------------------------------

// Everything that tasks of one call share.
template <class T, class P>
struct Job {
    const Call& call;
    const Batch& batch;
    const T* query;
    int64_t query_stride;
    const P* pages;
    const Strides& strides;
    const float* sinks;
    int64_t sinks_stride;
    T* out;
    float* lse;
    int group;
    Width width;

    int tokens(int row) const { return batch.query_starts[row + 1] - batch.query_starts[row]; }
    int start(int row) const { return batch.lengths[row] - tokens(row); }
    int oldest(int position) const {
        const int windowed = call.window > 0 ? std::max(0, position - call.window + 1) : 0;
        return call.chunk > 0 ? std::max(windowed, position / call.chunk * call.chunk) : windowed;
    }
    int first(int row) const { return batch.ranges ? batch.ranges[2 * row] : 0; }
    int last(int row, int slot) const {
        return batch.ranges ? std::min(slot, batch.ranges[2 * row + 1] - 1) : slot;
    }
    // The first slot that tokens from the one at `slot` on may see. In a tree each of them may be
    // as near to the context as the first.
    int lowest(int row, int slot) const {
        return std::max(first(row), oldest(batch.depths ? start(row) : slot));
    }
    // Element of the query row r of a task: rows go token by token, head by head.
    int64_t token(const Task& task, int r) const {
        return batch.query_starts[task.row] + task.first + r / group;
    }
    int head(const Task& task, int r) const { return task.head * group + r % group; }
    // The first key of a task that is read.
    int begin(const Task& task) const {
        const int oldest = lowest(task.row, start(task.row) + task.first) / kBlock * kBlock;
        return std::max(task.begin, oldest);
    }
    // Up to kBlock keys of a task.
    Located<P> keys(const Task& task, int from) const {
        const int end = std::min(from + kBlock, task.end);
        return {batch, pages, strides, task.row, task.head, from, std::max(from, end)};
    }
};

template <class T, class P>
std::vector<Asker> askers_of(const Job<T, P>& job, const Task& task) {
    std::vector<Asker> askers(size_t(task.tokens) * job.group);
    const int start = job.start(task.row), first = job.first(task.row);
    for (int r = 0; r < int(askers.size()); r++) {
        const int slot = start + task.first + r / job.group;
        const int64_t token = job.token(task, r);
        const int position = job.batch.depths ? start + job.batch.depths[token] : slot;
        const uint64_t ancestors = job.batch.ancestors ? job.batch.ancestors[token] : ~0ull;
        const float slope = job.call.slopes ? job.call.slopes[job.head(task, r)] : 0.0f;
        const int oldest = job.oldest(position), last = job.last(task.row, slot);
        askers[r] = {position, oldest, first, last, ancestors, slope};
    }
    return askers;
}

template <class X, class T, class P>
void copy_query(const Job<T, P>& job, const Task& task, int rows, float* to) {
    Reader<X, T> read(job.call.head_dim);
    const int stride = job.width.keys / kPerWord<X>;
    for (int r = 0; r < rows; r++) {
        const T* from = job.query + job.token(task, r) * job.query_stride +
                        int64_t(job.head(task, r)) * job.call.head_dim;
        for (int w = 0; w < stride; w += kWidth)
            store(to + int64_t(r) * stride + w, read(from, w * kPerWord<X>));
    }
}

// Whether a task's queries are one tile, so that keys need not be packed.
template <class X>
bool takes_lying_keys(int rows) {
    return kTiled<X> && rows <= kRowsTogether;
}

// Calls with(r, n, state) for the rows [r, r + n) of a task that see something of a block.
template <int kMost, class With>
void for_seeing(const std::vector<Asker>& askers, int begin, int end, Softmax state, int dim,
                const With& with) {
    const int rows = int(askers.size());
    for (int r = 0; r < rows; r += kMost) {
        const int n = std::min(kMost, rows - r);
        const auto blind = [&](const Asker& asker) { return asker.sees_none(begin, end); };
        if (std::all_of(&askers[r], &askers[r] + n, blind)) continue;
        with(r, n, Softmax{state.most + r, state.total + r, state.sum + int64_t(r) * dim});
    }
}

// All query rows of a task to one block of keys. `next` is the block that comes after it.
template <class X, class T, class P>
void attend_block(const Job<T, P>& job, const Task& task, const std::vector<Asker>& askers,
                  const Room& room, int begin, const Located<P>& next, Softmax state) {
    const Located<P> here = job.keys(task, begin);
    const Width& width = job.width;
    const int end = begin + here.count;
    const int start = job.start(task.row), dim = width.values;
    const bool lying = takes_lying_keys<X>(int(askers.size()));
    if (!lying) pack_keys<X>(here, next, width.key, width.keys, room.keys);
    pack_values<X>(here, next, job.strides.value, width.value, dim, room.values);
    const bool tree = job.batch.depths != nullptr && end > start;
    const int32_t* depths = tree ? job.batch.depths + job.batch.query_starts[task.row] : nullptr;
    const Block block = {room.keys, room.values, begin, end - begin, depths, start};
    const int stride = width.keys / kPerWord<X>;
    const auto query = [&](int r) { return room.query + int64_t(r) * stride; };
#if defined(__AMX_BF16__)
    if constexpr (kTiled<X>) {
        return for_seeing<kTileRows>(askers, begin, end, state, dim, [&](int r, int n, auto some) {
            alignas(64) float scores[kTileRows * kBlock];
            if (lying)
                score_keys(here, next, job.strides.token, width, room, n, scores);
            else
                score_on_tiles<kBlock>(query(r), stride, room.keys, stride, scores);
            weigh_tile(n, job.call, &askers[r], block, dim, some, scores);
        });
    }
#endif
    for_seeing<kTile>(askers, begin, end, state, dim, [&](int r, int n, auto some) {
        attend_rows<X>(n, job.call, &askers[r], query(r), stride, block, dim, some);
    });
}

// The scores of a query row as one: the sum of exp(score - most) is total. What was summed up
// without the sink, which is one more score, of a key whose value is zero, fades by `fade`.
struct Sum {
    float most, total, fade;
};

template <class T, class P>
Sum sum_of(const Job<T, P>& job, const Task& task, int r, Softmax state) {
    if (job.sinks == nullptr) return {state.most[r], state.total[r], 1.0f};
    const float sink = job.sinks[job.token(task, r) * job.sinks_stride + job.head(task, r)];
    const float most = std::max(sink, state.most[r]), fade = exp_one(state.most[r] - most);
    return {most, state.total[r] * fade + exp_one(sink - most), fade};
}

template <class T, class P>
void write(const Job<T, P>& job, const Task& task, int rows, Softmax state) {
    alignas(64) T padded[kWidth];
    const int width = job.width.value;
    for (int r = 0; r < rows; r++) {
        const int64_t place = job.token(task, r) * job.call.num_heads + job.head(task, r);
        const Sum whole = sum_of(job, task, r, state);
        // Only a range may leave a token nothing to see: then there is nothing, not 0 / 0.
        const bool nothing = job.batch.ranges != nullptr && whole.most == kHidden;
        const Vec share = set1(nothing ? 0.0f : whole.fade / whole.total);
        T* to = job.out + place * width;
        for (int d = 0; d < width; d += kWidth) {
            store(padded, load(state.sum + int64_t(r) * job.width.values + d) * share);
            std::copy_n(padded, std::min(kWidth, width - d), to + d);
        }
        if (job.lse) job.lse[place] = whole.most + std::log(whole.total);
    }
}

// All partitions of a task, one after the other. `partials` holds what other tasks merge; `after`
// is the task that this thread turns to then, or null.
template <class X, class T, class P>
void run(const Job<T, P>& job, const Task& task, const Task* after,
         const std::vector<Softmax>& partials) {
    const Width& width = job.width;
    const int rows = task.tokens * job.group, stride = width.keys / kPerWord<X>;
    const int dim = width.values;
    const size_t words = size_t(with_room(rows)) * stride, turned = size_t(kRowsTogether) * stride;
    scratch.reset(words + turned + size_t(kBlock) * (width.keys + dim) +
                  2 * softmax_size(rows, dim) + 64);
    const Room room = {scratch.take(words), scratch.take(turned),
                       scratch.take(size_t(kBlock) * width.keys),
                       scratch.take(size_t(kBlock) * dim)};
    const Softmax part = task.partial < 0 ? take_softmax(scratch, rows, dim)
                                          : partials[size_t(task.partial)];
    Softmax whole = take_softmax(scratch, rows, dim), current = part;
    clear(whole, rows, dim);
    copy_query<X>(job, task, rows, room.query);
#if defined(__AMX_BF16__)
    const AttentionShapes shapes(std::min(rows, kTileRows));
    const std::conditional_t<kTiled<X>, Tiles, NoTiles> tiles(shapes);
    if (takes_lying_keys<X>(rows)) turn_queries(room.query, rows, stride, room.turned);
#endif
    const std::vector<Asker> askers = askers_of(job, task);
    const int oldest = job.begin(task);
    for (int begin = task.begin; begin < task.end; begin += kPartition) {
        clear(current, rows, dim);
        const int stop = std::min(begin + kPartition, task.end);
        for (int b = std::max(begin, oldest); b < stop; b += kBlock) {
            const bool last = b + kBlock >= task.end && after != nullptr;
            const Located<P> next =
                last ? job.keys(*after, job.begin(*after)) : job.keys(task, b + kBlock);
            attend_block<X>(job, task, askers, room, b, next, current);
        }
        if (task.partial < 0) merge(whole, current, rows, dim);
    }
    if (task.partial < 0) write(job, task, rows, whole);
}

// The work of one call: tasks, and room for what some of them leave to be merged.
class Work {
   public:
    std::vector<Task> tasks;
    std::vector<Softmax> partials;
    int64_t products = 0;  // about how many multiply-adds

    template <class T, class P>
    explicit Work(const Job<T, P>& job) {
        const int threads = omp_get_max_threads();
        int64_t keys = 0;
        for (int row = 0; row < job.batch.rows; row++) keys += job.batch.lengths[row];
        if (threads > 1) enough_ = std::max<int64_t>(kPartition, keys / (4 * threads));
        for (int row = 0; row < job.batch.rows; row++)
            for (int head = 0; head < job.call.num_kv_heads; head++) add(job, row, head);
    }

    void make_room(Scratch& from, int group, int dim) {
        size_t floats = 0;
        for (const Task& task : tasks)
            if (task.partial >= 0) floats += softmax_size(task.tokens * group, dim);
        from.reset(floats);
        for (const Task& task : tasks)
            if (task.partial >= 0) partials.push_back(take_softmax(from, task.tokens * group, dim));
    }

   private:
    template <class T, class P>
    void add(const Job<T, P>& job, int row, int head) {
        const int tokens = job.tokens(row), most = std::max(1, kQueryRows / job.group);
        // The last tokens see the most keys: what takes longest starts first.
        for (int first = (tokens - 1) / most * most; first >= 0; first -= most) {
            const int some = std::min(most, tokens - first), start = job.start(row) + first;
            const int begin = job.lowest(row, start) / kPartition * kPartition;
            const int end = std::max(begin, job.last(row, start + some - 1) + 1);
            products += int64_t(end - begin) * job.width.keys * (some * job.group + 4);
            // A few tokens over many keys: only keys are left to divide among threads. Rows that
            // are short beside the others are not divided, which bounds the room for partials.
            const bool split = tokens <= most && end - begin > enough_;
            if (!split) tasks.push_back({row, head, first, some, begin, end, -1});
            for (int b = begin; split && b < end; b += kPartition)
                tasks.push_back(
                    {row, head, first, some, b, std::min(b + kPartition, end), num_partials_++});
        }
    }

    int64_t enough_ = std::numeric_limits<int64_t>::max();  // keys of one task
    int num_partials_ = 0;
};

thread_local Scratch shared_scratch;

// Merge what the tasks of one row and key head have left, beginning with task `i`.
template <class T, class P>
void finish(const Job<T, P>& job, const Work& work, size_t i) {
    const Task& first = work.tasks[i];
    const int rows = first.tokens * job.group;
    const int dim = job.width.values;
    scratch.reset(softmax_size(rows, dim));
    Softmax whole = take_softmax(scratch, rows, dim);
    clear(whole, rows, dim);
    for (; i < work.tasks.size(); i++) {
        const Task& task = work.tasks[i];
        if (task.row != first.row || task.head != first.head) break;
        merge(whole, work.partials[size_t(task.partial)], rows, dim);
    }
    write(job, first, rows, whole);
}

bool starts_split(const Work& work, int i) {
    const Task& task = work.tasks[size_t(i)];
    if (task.partial < 0) return false;
    if (i == 0) return true;
    const Task& before = work.tasks[size_t(i) - 1];
    return before.row != task.row || before.head != task.head;
}

constexpr int64_t kWorthThreads = 1 << 17;  // multiply-adds: some ten microseconds

template <class X, class T, class P>
void attend(const Call& call, const Batch& batch, const T* query, int64_t query_stride,
            const P* pages, const Strides& strides, const float* sinks, int64_t sinks_stride,
            T* out, float* lse) {
    const int group = call.num_heads / call.num_kv_heads;
    const Job<T, P> job{call,  batch,        query, query_stride, pages, strides,
                        sinks, sinks_stride, out,   lse,          group, Width(call)};
    Work work(job);
    work.make_room(shared_scratch, group, job.width.values);
    const int count = int(work.tasks.size());
    const bool worth = work.products >= kWorthThreads;
    share(worth, count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const Task* task = &work.tasks[size_t(i)];
            run<X>(job, *task, i + 1 < end ? task + 1 : nullptr, work.partials);
        }
    }, Pieces::kUneven);
    share(worth, count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            if (starts_split(work, int(i))) finish(job, work, size_t(i));
    }, Pieces::kUneven);
}

}  // namespace
}  // namespace baton

// query [T, num_heads, head_dim] with `query_stride` elements between tokens; out is contiguous,
// [T, num_heads, value_dim]; sinks [num_heads] in float, every `sinks_stride` elements those of a
// token, or null; lse [T, num_heads], for the logarithms of what the weights are parts of, or null;
// `rows` in place of the batch's own.
extern "C" void baton_attend(const baton::Call* call, const baton::Batch* batch, const void* query,
                             int64_t query_stride, const void* pages,
                             const baton::Strides* strides, const float* sinks,
                             int64_t sinks_stride, void* out, float* lse, int64_t rows) {
    baton::Batch some = *batch;
    some.rows = int32_t(rows);
    const auto run = [&](auto operand, auto element, auto kept) {
        using T = decltype(element);
        using P = decltype(kept);
        baton::attend<decltype(operand)>(
            *call, some, static_cast<const T*>(query), query_stride,
            static_cast<const P*>(pages), *strides, sinks, sinks_stride, static_cast<T*>(out),
            lse);
    };
    const auto choose = [&](auto operand, auto element) {
        if (call->codes == 1)
            run(operand, element, baton::Int8{});
        else if (call->codes == 2)
            run(operand, element, baton::Fp8{});
        else
            run(operand, element, element);
    };
    if (call->bytes == 4)
        choose(float{}, float{});
    else
        choose(baton::Fast{}, baton::Bf16{});
}
