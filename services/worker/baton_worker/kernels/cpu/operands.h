// What products of attention work on: 32-bit words, one float or two bfloat16 where the CPU
// multiplies such pairs.
#pragma once

#include "pages.h"
#include "tile_shapes.h"

namespace baton {
namespace {

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

}  // namespace
}  // namespace baton
