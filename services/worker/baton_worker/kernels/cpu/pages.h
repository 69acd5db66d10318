// How a page holds one key or value of one head: as plain numbers, or as a byte per channel, its
// code, followed by a scale in float that turns codes into numbers: x = scale * code. And where in
// the page it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace baton {

// Elements of the pages from one page, token, key to value, head to the next: token by token or
// head by head, see kernels/page_layout.py, where it is mirrored. Channels lie side by side.
struct Strides {
    std::int64_t page, token, value, head;
};

// The lowest byte of every lane.
inline void store_lowest_bytes(void* p, IntVec x) {
#if defined(__AVX512F__)
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
#else
    const IntVec bytes = both(x, set1(0xff));
    const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
    const __m128i words = _mm_packus_epi32(low, high);
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(words, words));
#endif
}

// Whole numbers from -127 to 127.
struct Int8 {
    std::uint8_t bits;

    static constexpr float kMost = 127, kUnit = 1;

    static Vec decode(const Int8* p) {
        return to_float(load_signed(reinterpret_cast<const std::int8_t*>(p)));
    }
    static IntVec encode(Vec x) { return to_int(x); }
};

// Floats of four exponent and three mantissa bits without infinities (e4m3fn, Micikevicius et al.
// 2022, arXiv:2209.05433), from -448 to 448.
struct Fp8 {
    std::uint8_t bits;

    // Shifted into place, such a float is a half-precision one of a 256th of its size.
    static constexpr float kMost = 448, kUnit = 256;

    static Vec decode(const Fp8* p) {
#if defined(__AVX512F__)
        const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256i size = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(0x3f80));
        const __m256i sign = _mm256_and_si256(x, _mm256_set1_epi16(-0x8000));
        return _mm512_cvtph_ps(_mm256_or_si256(size, sign));
#else
        const __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        const __m128i size = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16(0x3f80));
        const __m128i sign = _mm_and_si128(x, _mm_set1_epi16(-0x8000));
        return _mm256_cvtph_ps(_mm_or_si128(size, sign));
#endif
    }

    // To the nearest, ties to even. Below 2^-6 codes count multiples of 2^-9.
    static IntVec encode(Vec x) {
        const IntVec bits = as_int(x), size = both(bits, set1(0x7fffffff));
        const IntVec odd = both(shift_right<20>(size), set1(1));
        const IntVec rounded = shift_right<20>(add(size, add(odd, set1(0x7ffff))));
        const IntVec normal = add(rounded, set1(-(120 << 3)));
        const IntVec small = to_int(mul(as_float(size), set1(512.0f)));
        const Vec chosen =
            within(as_float(size), zero(), set1(0x1p-6f), as_float(small), as_float(normal));
        return add(as_int(chosen), both(shift_right<24>(bits), set1(0x80)));
    }
};

// Elements of a page that follow the channels of a key or value.
template <class P>
constexpr int kScale = 0;
template <>
constexpr int kScale<Int8> = sizeof(float);
template <>
constexpr int kScale<Fp8> = sizeof(float);

constexpr float kLeast = 1e-30f;  // stands for what is smaller, so that a scale has an inverse

// One key or value to its place in a page. What is not finite makes the scale no number, so that
// a broken sequence shows.
// With a `given` scale above 0 that is taken, and what is too large for it cut off.
template <class T>
void keep(const T* from, int size, float, T* to) {
    std::copy_n(from, size, to);
}

template <class T, class P>
void keep(const T* from, int size, float given, P* to) {
    Vec most = set1(kLeast), broken = zero();
    for (int i = 0; i < size; i += kWidth) {
        const Vec x = load_some(from + i, std::min(kWidth, size - i));
        most = max(most, as_float(both(as_int(x), set1(0x7fffffff))));
        broken = fma(x, zero(), broken);
    }
    const float least = largest(most) * (1.0f / P::kMost);
    const float scale = (given > 0 ? given : least) + sum(broken);
    const Vec inverse = set1(1.0f / scale), limit = set1(P::kMost);
    for (int i = 0; i < size; i += kWidth) {
        const int n = std::min(kWidth, size - i);
        const Vec x = mul(load_some(from + i, n), inverse);
        std::uint8_t codes[kWidth];
        store_lowest_bytes(codes, P::encode(max(min(x, limit), sub(zero(), limit))));
        std::memcpy(to + i, codes, n);
    }
    std::memcpy(to + size, &scale, sizeof scale);
}

}  // namespace baton
