// The product with a trellis-coded weight (kernels/cpu/trellis_weight.py): every tile of 16 x 16
// values is decoded on the way, so a weight takes one to eight bits of memory traffic.
//
// y = svh * H(C^T H(suh * x)) (+ bias) (+ residual), H a Hadamard matrix for every 128 channels. Every
// sum of a row runs over the inputs in one order: its bits depend on no other row.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "simd.h"
#include "team.h"

namespace baton {

// Mirrored in kernels/cpu/trellis_linear.py.
struct Trellis {
    const std::uint32_t* tiles;  // [columns / 16, depth / 16, bits, 8]
    const float* left;           // [depth], with the scale of H
    const float* right;          // [columns], with the scale of H
    const float* bias;           // [columns] or null
    std::int64_t depth, columns;
    std::int64_t stride;         // elements between rows of residual and of the result
    std::int32_t bits, codebook;
    std::int32_t input_is_float, output_is_float;
};

namespace {

constexpr std::int64_t kTile = 16, kLanes = 8, kBlock = 128, kValues = kTile * kTile;
constexpr std::int64_t kChunk = 32;  // tiles that are decoded before they are multiplied: 32 KB
constexpr int kRows = 4;             // that pass a decoded value at once
constexpr std::int64_t kWorthThreads = 1 << 15;

// ---- Codebooks: the value of a state of 16 bits

inline __m256 rounded_to_half(__m256 x) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// Of the upper half of every lane, masked with 0x8fff and flipped with 0x3b60, the half-precision
// number: its exponent is 12 to 15, so the bits of the float are those and an exponent of 112 more.
inline __m256 upper_number(__m256i hash) {
    const __m256i kept = _mm256_set1_epi32(static_cast<int>(0x81ffe000));
    const __m256i flipped = _mm256_set1_epi32(0x3f6c0000);
    const __m256i moved = _mm256_and_si256(_mm256_srai_epi32(hash, 3), kept);
    return _mm256_castsi256_ps(_mm256_xor_si256(moved, flipped));
}

// The sum of two numbers near 1 that are made of the halves of a hash.
inline __m256 two_halves(__m256i hash) {
    const __m256 lower = upper_number(_mm256_slli_epi32(hash, 16));
    return rounded_to_half(_mm256_add_ps(lower, upper_number(hash)));
}

struct ThreeInstructions {
    static __m256 value(__m256i state) {
        const __m256i product = _mm256_mullo_epi32(state, _mm256_set1_epi32(89226354));
        return two_halves(_mm256_add_epi32(product, _mm256_set1_epi32(64248484)));
    }
};

struct Multiplied {
    static __m256 value(__m256i state) {
        const __m256i factor = _mm256_set1_epi32(static_cast<int>(0xcbac1fed));
        return two_halves(_mm256_mullo_epi32(state, factor));
    }
};

// The sum of a hash's four bytes, about normal, brought to a deviation of 1.
struct SumOfBytes {
    static __m256 value(__m256i state) {
        const __m256i factor = _mm256_set1_epi32(static_cast<int>(0x83dcd12d));
        const __m256i hash = _mm256_mullo_epi32(state, factor);
        const __m256i pairs = _mm256_maddubs_epi16(hash, _mm256_set1_epi8(1));
        const __m256i total = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        // (1024 + total) * 0x1eee + 0xc931, both half-precision numbers: exact before it is rounded.
        const __m256 factor_of_total = _mm256_set1_ps(0.00676727294921875f);
        return rounded_to_half(_mm256_fmadd_ps(_mm256_cvtepi32_ps(total), factor_of_total,
                                               _mm256_set1_ps(-3.453125f)));
    }
};

// ---- Tiles

// The states of outputs 8 * Half and the next for one input of a tile: of 32 bits per lane those
// from `Begin` on, across two words.
template <int Begin, int Bits>
__m256i states(const __m256i (&words)[Bits + 1]) {
    constexpr int kWord = Begin / 32, kShift = Begin % 32;
    __m256i found = _mm256_srli_epi32(words[kWord], kShift);
    if constexpr (kShift > 16)
        found = _mm256_or_si256(found, _mm256_slli_epi32(words[kWord + 1], 32 - kShift));
    return _mm256_and_si256(found, _mm256_set1_epi32(0xffff));
}

// The values of one input, 16 outputs, go to `use(input, first eight, last eight)`.
template <class Book, int Bits, int Input, class Use>
[[gnu::always_inline]] inline void decode_input(const __m256i (&words)[Bits + 1], const Use& use) {
    // The place of a value in a lane's share of the ring follows the fragments of a tensor core.
    constexpr int kPlace = Input % 8 / 2 * 8 + Input / 8 * 2 + Input % 2;
    use(Input, Book::value(states<(31 - kPlace) * Bits, Bits>(words)),
        Book::value(states<(27 - kPlace) * Bits, Bits>(words)));
}

template <class Book, int Bits, class Use, int... Inputs>
[[gnu::always_inline]] inline void decode_tile(const std::uint32_t* tile, const Use& use,
                                               std::integer_sequence<int, Inputs...>) {
    __m256i words[Bits + 1];
    for (int i = 0; i < Bits; ++i)
        words[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + i * kLanes));
    // A lane goes on in the one before it.
    const __m256i before = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
    words[Bits] = _mm256_permutevar8x32_epi32(words[0], before);
    (decode_input<Book, Bits, Inputs>(words, use), ...);
}

template <class Book, int Bits, class Use>
[[gnu::always_inline]] inline void decode_tile(const std::uint32_t* tile, const Use& use) {
    decode_tile<Book, Bits>(tile, use, std::make_integer_sequence<int, kTile>());
}

template <class Book, int Bits>
void decode(const std::uint32_t* tiles, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i, to += kValues)
        decode_tile<Book, Bits>(tiles + i * Bits * kLanes, [to](int input, __m256 a, __m256 b) {
            _mm256_storeu_ps(to + input * kTile, a);
            _mm256_storeu_ps(to + input * kTile + kLanes, b);
        });
}

// The sums of one row for 16 outputs: values are multiplied as they are decoded, which hides how long
// each sum waits for the one before. The order is that of `multiply`.
template <class Book, int Bits>
void multiply_one(const std::uint32_t* tiles, std::int64_t count, const float* inputs,
                  float* sums) {
    __m256 first = _mm256_setzero_ps(), last = _mm256_setzero_ps();
    for (std::int64_t i = 0; i < count; ++i, inputs += kTile)
        decode_tile<Book, Bits>(tiles + i * Bits * kLanes, [&](int input, __m256 a, __m256 b) {
            const __m256 x = _mm256_set1_ps(inputs[input]);
            first = _mm256_fmadd_ps(x, a, first);
            last = _mm256_fmadd_ps(x, b, last);
        });
    _mm256_storeu_ps(sums, first);
    _mm256_storeu_ps(sums + kLanes, last);
}

// What reads the tiles of one codebook and one number of bits.
struct Decoder {
    void (*decode)(const std::uint32_t* tiles, std::int64_t count, float* to);
    void (*multiply_one)(const std::uint32_t* tiles, std::int64_t count, const float* inputs,
                         float* sums);
};

template <class Book, int... Bits>
Decoder decoder_of(std::int32_t bits, std::integer_sequence<int, Bits...>) {
    constexpr Decoder kAll[] = {{decode<Book, Bits + 1>, multiply_one<Book, Bits + 1>}...};
    return kAll[bits - 1];
}

Decoder decoder(const Trellis& w) {
    constexpr auto kBits = std::make_integer_sequence<int, 8>();
    switch (w.codebook) {
        case 0: return decoder_of<ThreeInstructions>(w.bits, kBits);
        case 1: return decoder_of<Multiplied>(w.bits, kBits);
        default: return decoder_of<SumOfBytes>(w.bits, kBits);
    }
}

// ---- Products

// N rows of inputs [depth], `step` floats apart, times decoded values [depth, 16], added to sums.
template <int N>
void multiply(const float* values, std::int64_t depth, const float* inputs, std::int64_t step,
              float* sums, std::int64_t sum_step) {
    constexpr int kVecs = kTile / kWidth;
    Vec total[N][kVecs];
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < kVecs; ++v) total[n][v] = load(sums + n * sum_step + v * kWidth);
    for (std::int64_t k = 0; k < depth; ++k) {
        Vec row[kVecs];
        for (int v = 0; v < kVecs; ++v) row[v] = load(values + k * kTile + v * kWidth);
        for (int n = 0; n < N; ++n) {
            const Vec x = set1(inputs[n * step + k]);
            for (int v = 0; v < kVecs; ++v) total[n][v] = fma(x, row[v], total[n][v]);
        }
    }
    for (int n = 0; n < N; ++n)
        for (int v = 0; v < kVecs; ++v) store(sums + n * sum_step + v * kWidth, total[n][v]);
}

// Sums [rows, columns] of 16 outputs from `column` on.
void multiply_tiles(const Trellis& w, const Decoder& decoder, std::int64_t column, const float* inputs,
                    std::int64_t rows, float* sums) {
    thread_local float values[kChunk * kValues];
    const std::int64_t tiles = w.depth / kTile;
    if (rows == 1) {
        const std::uint32_t* all = w.tiles + column / kTile * tiles * w.bits * kLanes;
        return decoder.multiply_one(all, tiles, inputs, sums + column);
    }
    for (std::int64_t m = 0; m < rows; ++m)
        std::fill_n(sums + m * w.columns + column, kTile, 0.0f);
    for (std::int64_t first = 0; first < tiles; first += kChunk) {
        const std::int64_t count = std::min(kChunk, tiles - first), depth = count * kTile;
        const std::int64_t number = column / kTile * tiles + first;
        decoder.decode(w.tiles + number * w.bits * kLanes, count, values);
        const float* from = inputs + first * kTile;
        float* to = sums + column;
        std::int64_t m = 0;
        for (; m + kRows <= rows; m += kRows)
            multiply<kRows>(values, depth, from + m * w.depth, w.depth, to + m * w.columns,
                            w.columns);
        for (; m < rows; ++m)
            multiply<1>(values, depth, from + m * w.depth, w.depth, to + m * w.columns, w.columns);
    }
}

// The product of 128 numbers with H, but for its scale.
void transform(float* x) {
    for (std::int64_t half = 1; half < kBlock; half *= 2)
        for (std::int64_t i = 0; i < kBlock; i += 2 * half)
            for (std::int64_t j = i; j < i + half; ++j) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
}

template <class T>
void turn_inputs(const Trellis& w, const T* x, float* to, std::int64_t first) {
    for (std::int64_t k = 0; k < kBlock; k += kWidth)
        store(to + first + k, mul(load(x + first + k), load(w.left + first + k)));
    transform(to + first);
}

template <class T, class Out>
void finish(const Trellis& w, float* sums, const T* residual, Out* out, std::int64_t first) {
    transform(sums + first);
    for (std::int64_t n = first; n < first + kBlock; n += kWidth) {
        Vec y = mul(load(sums + n), load(w.right + n));
        if (w.bias != nullptr) y = add(y, load(w.bias + n));
        if (residual != nullptr) y = add(y, load(residual + n));
        store(out + n, y);
    }
}

// Memory that grows to the largest request and stays with its thread.
template <int>
float* workspace(std::int64_t wanted) {
    static thread_local std::unique_ptr<float[]> memory;
    static thread_local std::int64_t size = 0;
    if (wanted > size) {
        memory.reset(new float[wanted]);
        size = wanted;
    }
    return memory.get();
}

template <class T, class Out>
void run(const Trellis& w, const T* x, std::int64_t rows, std::int64_t stride, const T* residual,
         Out* out) {
    float* inputs = workspace<0>(rows * w.depth);
    float* sums = workspace<1>(rows * w.columns);
    const std::int64_t deep = w.depth / kBlock, wide = w.columns / kBlock;
    const auto each = [](bool worth, std::int64_t items, const auto& body) {
        share(worth, items, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) body(i);
        });
    };
    const Decoder chosen = decoder(w);
    each(rows * w.depth > kWorthThreads, rows * deep, [&](std::int64_t i) {
        turn_inputs(w, x + i / deep * stride, inputs + i / deep * w.depth, i % deep * kBlock);
    });
    each(w.depth * w.columns > kWorthThreads, w.columns / kTile, [&](std::int64_t i) {
        multiply_tiles(w, chosen, i * kTile, inputs, rows, sums);
    });
    each(rows * w.columns > kWorthThreads, rows * wide, [&](std::int64_t i) {
        const std::int64_t m = i / wide;
        const T* more = residual == nullptr ? nullptr : residual + m * w.stride;
        finish(w, sums + m * w.columns, more, out + m * w.stride, i % wide * kBlock);
    });
}

}  // namespace
}  // namespace baton

// x [rows, depth] with `stride` elements between rows; residual (or null) and out [rows, columns]
// with the weight's stride.
extern "C" void baton_trellis(const baton::Trellis* w, const void* x, std::int64_t rows,
                              std::int64_t stride, const void* residual, void* out) {
    using baton::Bf16;
    const auto go = [&](auto in, auto result) {
        using T = decltype(in);
        using Out = decltype(result);
        baton::run(*w, static_cast<const T*>(x), rows, stride, static_cast<const T*>(residual),
                   static_cast<Out*>(out));
    };
    if (w->input_is_float) return go(float{}, float{});
    w->output_is_float ? go(Bf16{}, float{}) : go(Bf16{}, Bf16{});
}
