// A vector of floats, the same source at every instruction-set level.
//
// `Vec` holds 16 floats with AVX-512 and 8 with AVX2. Every function is one or two instructions
// with a fixed rounding, so a loop over `Vec` gives the same bits wherever it is inlined.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace baton {

using Bf16 = std::uint16_t;  // The upper half of a float; arithmetic is done on floats.

#if defined(__AVX512F__)

using Vec = __m512;
using IntVec = __m512i;
constexpr int kWidth = 16;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec round(Vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline IntVec to_int(Vec x) { return _mm512_cvtps_epi32(x); }
inline Vec to_float(IntVec x) { return _mm512_cvtepi32_ps(x); }
inline Vec as_float(IntVec x) { return _mm512_castsi512_ps(x); }
inline IntVec as_int(Vec x) { return _mm512_castps_si512(x); }
inline IntVec set1(std::int32_t x) { return _mm512_set1_epi32(x); }
inline IntVec add(IntVec a, IntVec b) { return _mm512_add_epi32(a, b); }
inline IntVec both(IntVec a, IntVec b) { return _mm512_and_si512(a, b); }
inline IntVec load_bytes(const void* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(void* p, IntVec x) { _mm512_storeu_si512(p, x); }
inline IntVec either(IntVec a, IntVec b) { return _mm512_or_si512(a, b); }
// `a`, and of `b` the bits of `mask`.
inline IntVec with_bits(IntVec a, IntVec b, IntVec mask) {
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}
template <int N>
inline IntVec shift_left(IntVec x) { return _mm512_slli_epi32(x, N); }
template <int N>
inline IntVec shift_right(IntVec x) { return _mm512_srli_epi32(x, N); }

// The same on 16-bit words, twice as many.
// a + b, but a where `condition` is zero.
inline IntVec add_words_where(IntVec condition, IntVec a, IntVec b) {
    return _mm512_mask_add_epi16(a, _mm512_test_epi16_mask(condition, condition), a, b);
}
inline IntVec sub_words_saturated(IntVec a, IntVec b) { return _mm512_subs_epu16(a, b); }
template <int N>
inline IntVec shift_words_left(IntVec x) { return _mm512_slli_epi16(x, N); }
template <int N>
inline IntVec shift_words_right(IntVec x) { return _mm512_srli_epi16(x, N); }
inline IntVec swap_bytes(IntVec words) {
    const __m128i order = _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return _mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(order));
}

inline Vec load(const Bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return as_float(shift_left<16>(_mm512_cvtepu16_epi32(half)));
}
inline Vec load_half(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// Small integers, one per lane.
inline IntVec load_signed(const std::int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 16-bit words, one per lane, without a sign.
inline IntVec load_words(const std::uint16_t* p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// 2 * kWidth small integers as 16-bit halves of lanes.
inline IntVec load_signed_pairs(const std::int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <int N>
inline IntVec shift_right_signed(IntVec x) { return _mm512_srai_epi32(x, N); }
// A 256th of kWidth E4M3 floats: as half-precision numbers, whose exponent has a bias larger by 8.
inline Vec load_e4m3(const std::int8_t* p) {
    const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i signs = _mm256_set1_epi16(static_cast<short>(0xbfff));
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), signs));
}
// The half-precision numbers in the lower half of every lane.
inline Vec low_halves(IntVec x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
inline void store_rounded(Bf16* p, IntVec upper) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
}
inline IntVec where_nan(Vec x, IntVec otherwise, IntVec value) {
    return _mm512_mask_mov_epi32(otherwise, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), value);
}
// `value`, but zero in the lanes where x < limit.
inline Vec zero_below(Vec x, Vec limit, Vec value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
}
// Of the lower, or the upper, two words in every quarter of both vectors: a's, b's, a's, b's.
inline IntVec low_words(IntVec a, IntVec b) { return _mm512_unpacklo_epi32(a, b); }
inline IntVec high_words(IntVec a, IntVec b) { return _mm512_unpackhi_epi32(a, b); }
// The lower, or the upper, half of every quarter: a's, b's.
inline IntVec low_pairs(IntVec a, IntVec b) { return _mm512_unpacklo_epi64(a, b); }
inline IntVec high_pairs(IntVec a, IntVec b) { return _mm512_unpackhi_epi64(a, b); }
// The last part of `transpose`: x[4 r + c] has column c of rows 4 r to 4 r + 3 in every quarter.
inline void join_fours(const IntVec* x, IntVec* y) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const IntVec even_low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        const IntVec odd_low = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        const IntVec even_high = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        const IntVec odd_high = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
        y[i + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
        y[i + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
}
// Lanes 2 i and 2 i + 1 in each other's place.
inline Vec swap_neighbours(Vec x) { return _mm512_permute_ps(x, 0xb1); }
inline float sum(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest(Vec x) { return _mm512_reduce_max_ps(x); }

#else

using Vec = __m256;
using IntVec = __m256i;
constexpr int kWidth = 8;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec set1(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec round(Vec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline IntVec to_int(Vec x) { return _mm256_cvtps_epi32(x); }
inline Vec to_float(IntVec x) { return _mm256_cvtepi32_ps(x); }
inline Vec as_float(IntVec x) { return _mm256_castsi256_ps(x); }
inline IntVec as_int(Vec x) { return _mm256_castps_si256(x); }
inline IntVec set1(std::int32_t x) { return _mm256_set1_epi32(x); }
inline IntVec add(IntVec a, IntVec b) { return _mm256_add_epi32(a, b); }
inline IntVec both(IntVec a, IntVec b) { return _mm256_and_si256(a, b); }
inline IntVec load_bytes(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store_bytes(void* p, IntVec x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline IntVec either(IntVec a, IntVec b) { return _mm256_or_si256(a, b); }
// `a`, and of `b` the bits of `mask`.
inline IntVec with_bits(IntVec a, IntVec b, IntVec mask) { return either(a, both(b, mask)); }
template <int N>
inline IntVec shift_left(IntVec x) { return _mm256_slli_epi32(x, N); }
template <int N>
inline IntVec shift_right(IntVec x) { return _mm256_srli_epi32(x, N); }

// The same on 16-bit words, twice as many.
// a + b, but a where `condition` is zero.
inline IntVec add_words_where(IntVec condition, IntVec a, IntVec b) {
    const IntVec not_there = _mm256_cmpeq_epi16(condition, _mm256_setzero_si256());
    return _mm256_add_epi16(a, _mm256_andnot_si256(not_there, b));
}
inline IntVec sub_words_saturated(IntVec a, IntVec b) { return _mm256_subs_epu16(a, b); }
template <int N>
inline IntVec shift_words_left(IntVec x) { return _mm256_slli_epi16(x, N); }
template <int N>
inline IntVec shift_words_right(IntVec x) { return _mm256_srli_epi16(x, N); }
inline IntVec swap_bytes(IntVec words) {
    const __m128i order = _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(order));
}

inline Vec load(const Bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return as_float(shift_left<16>(_mm256_cvtepu16_epi32(half)));
}
inline Vec load_half(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// Small integers, one per lane.
inline IntVec load_signed(const std::int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// 16-bit words, one per lane, without a sign.
inline IntVec load_words(const std::uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// 2 * kWidth small integers as 16-bit halves of lanes.
inline IntVec load_signed_pairs(const std::int8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <int N>
inline IntVec shift_right_signed(IntVec x) { return _mm256_srai_epi32(x, N); }
// A 256th of kWidth E4M3 floats: as half-precision numbers, whose exponent has a bias larger by 8.
inline Vec load_e4m3(const std::int8_t* p) {
    const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i signs = _mm_set1_epi16(static_cast<short>(0xbfff));
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), signs));
}
// The half-precision numbers in the lower half of every lane.
inline Vec low_halves(IntVec x) {
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    const __m128i first = _mm256_castsi256_si128(low), last = _mm256_extracti128_si256(low, 1);
    return _mm256_cvtph_ps(_mm_packus_epi32(first, last));
}
inline void store_rounded(Bf16* p, IntVec upper) {
    const __m128i low = _mm256_castsi256_si128(upper), high = _mm256_extracti128_si256(upper, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi32(low, high));
}
inline IntVec where_nan(Vec x, IntVec otherwise, IntVec value) {
    const Vec mask = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return as_int(_mm256_blendv_ps(as_float(otherwise), as_float(value), mask));
}
// `value`, but zero in the lanes where x < limit.
inline Vec zero_below(Vec x, Vec limit, Vec value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, limit, _CMP_NLT_UQ), value);
}
// Of the lower, or the upper, two words in every half of both vectors: a's, b's, a's, b's.
inline IntVec low_words(IntVec a, IntVec b) { return _mm256_unpacklo_epi32(a, b); }
inline IntVec high_words(IntVec a, IntVec b) { return _mm256_unpackhi_epi32(a, b); }
// The lower, or the upper, half of every half: a's, b's.
inline IntVec low_pairs(IntVec a, IntVec b) { return _mm256_unpacklo_epi64(a, b); }
inline IntVec high_pairs(IntVec a, IntVec b) { return _mm256_unpackhi_epi64(a, b); }
// The last part of `transpose`: x[4 r + c] has column c of rows 4 r to 4 r + 3 in either half.
inline void join_fours(const IntVec* x, IntVec* y) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        y[i] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2x128_si256(x[i], x[i + 4], 0x31);
    }
}
// Products of 16-bit words, the two of every lane added.
inline IntVec multiply_pairs(IntVec a, IntVec b) { return _mm256_madd_epi16(a, b); }
// Of every byte of `numbers`, below 16, that byte of a table of sixteen.
inline IntVec look_up(const std::uint8_t* table, IntVec numbers) {
    const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), numbers);
}
// Lanes 2 i and 2 i + 1 in each other's place.
inline Vec swap_neighbours(Vec x) { return _mm256_permute_ps(x, 0xb1); }
inline float sum(Vec x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
inline float largest(Vec x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}

#endif

// Lane i of vector j to lane j of vector i: by words, by pairs, by what a vector has of four words.
inline void transpose(IntVec (&x)[kWidth]) {
    IntVec y[kWidth];
#pragma GCC unroll 8
    for (int i = 0; i < kWidth; i += 2) {
        y[i] = low_words(x[i], x[i + 1]);
        y[i + 1] = high_words(x[i], x[i + 1]);
    }
    IntVec z[kWidth];
#pragma GCC unroll 4
    for (int i = 0; i < kWidth; i += 4) {
        z[i] = low_pairs(y[i], y[i + 2]);
        z[i + 1] = high_pairs(y[i], y[i + 2]);
        z[i + 2] = low_pairs(y[i + 1], y[i + 3]);
        z[i + 3] = high_pairs(y[i + 1], y[i + 3]);
    }
    join_fours(z, x);
}

// Round to nearest, ties to even, as torch does; a NaN stays one.
inline void store(Bf16* p, Vec x) {
    const IntVec bits = as_int(x), odd = both(shift_right<16>(bits), set1(1));
    const IntVec rounded = shift_right<16>(add(bits, add(odd, set1(0x7fff))));
    store_rounded(p, where_nan(x, rounded, set1(0x7fc0)));
}

// Inlined before compilers look for calls without an effect: g++ takes this for one and drops it.
template <auto Hint = _MM_HINT_T0>
[[gnu::always_inline]] inline void prefetch(const std::uint8_t* p, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; i += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(p + i), Hint);
    }
}

// Into the second cache.
[[gnu::always_inline]] inline void prefetch_later(const std::uint8_t* p, std::int64_t bytes) {
    prefetch<_MM_HINT_T1>(p, bytes);
}

// One line that is about to be written.
inline void prefetch_to_write(const std::uint8_t* p) { asm volatile("prefetchw %0" ::"m"(*p)); }

inline float to_float(Bf16 x) {
    const std::uint32_t bits = std::uint32_t{x} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// 2^n e^r for whole n and r in [-ln 2 / 2, ln 2 / 2], by a polynomial (the coefficients are those of
// Cephes' expf).
[[gnu::always_inline]] inline Vec scaled_exp(Vec n, Vec r) {
    Vec p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set1(1.0f)));
    // 2p * 2^(n-1): 2^128 is no float, although e^88.72 is.
    const Vec power = as_float(shift_left<23>(add(to_int(n), set1(126))));
    return mul(add(p, p), power);
}

// e^x within two units in the last place. Zero below -86.9, shortly before floats lose precision, so
// exp(-infinity) is exactly 0; infinity above 88.72; NaN stays NaN.
[[gnu::always_inline]] inline Vec exp(Vec x) {
    const Vec low = set1(-86.9f), high = set1(89.0f);
    // `min` and `max` return their second operand for a NaN: x goes there.
    const Vec clipped = max(low, min(high, x));
    const Vec n = round(mul(clipped, set1(1.44269504f)));
    Vec r = fma(n, set1(-0.693359375f), clipped);
    r = fma(n, set1(2.12194440e-4f), r);
    return zero_below(x, low, scaled_exp(n, r));
}

// 2^x as precisely, zero below -125.3.
inline Vec exp2(Vec x) {
    const Vec low = set1(-125.3f), high = set1(128.5f);
    const Vec clipped = max(low, min(high, x));
    const Vec n = round(clipped);
    return zero_below(x, low, scaled_exp(n, mul(sub(clipped, n), set1(0.693147181f))));
}

// log(1 + e^x) = max(x, 0) + log(1 + z) with z = e^-|x|, which is 2 artanh(z / (2 + z)): a series of
// s^2 <= 1/9, cut where it adds less than half a unit in the last place.
inline Vec softplus(Vec x) {
    const Vec z = exp(min(x, sub(zero(), x))), s = div(z, add(set1(2.0f), z)), t = mul(s, s);
    Vec p = set1(1.0f / 15);
    p = fma(p, t, set1(1.0f / 13));
    p = fma(p, t, set1(1.0f / 11));
    p = fma(p, t, set1(1.0f / 9));
    p = fma(p, t, set1(1.0f / 7));
    p = fma(p, t, set1(1.0f / 5));
    p = fma(p, t, set1(1.0f / 3));
    p = fma(p, t, set1(1.0f));
    return fma(add(s, s), p, max(zero(), x));
}

// The logistic function.
inline Vec sigmoid(Vec x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

// x times the logistic function of x.
inline Vec silu(Vec x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

// GELU in its tanh form, written with the logistic function: 1 + tanh(u) = 2 sigmoid(2 u).
inline Vec gelu_tanh(Vec x) {
    const Vec inner = fma(mul(mul(x, x), x), set1(0.044715f), x);
    return div(x, add(set1(1.0f), exp(mul(inner, set1(-1.5957691216f)))));
}

// The first `count` of a vector's lanes, at the edge of a matrix.
template <class T>
inline Vec load_some(const T* p, int count) {
    if (count >= kWidth) return load(p);
    T buffer[kWidth] = {};
    std::memcpy(buffer, p, sizeof(T) * count);
    return load(buffer);
}
template <class T>
inline void store_some(T* p, Vec x, int count) {
    if (count >= kWidth) return store(p, x);
    T buffer[kWidth];
    store(buffer, x);
    std::memcpy(p, buffer, sizeof(T) * count);
}

}  // namespace baton
