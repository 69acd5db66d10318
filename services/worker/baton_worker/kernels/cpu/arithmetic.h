// How an activation meets the weights of 2 * kWidth columns.
//
// A step is what one multiply instruction takes of the inner dimension. Sums run over steps in
// order, one accumulator per output: no count of rows or threads changes a bit of a result.
#pragma once

#include "simd.h"

namespace baton {

constexpr int kColumns = 2 * kWidth;

// One value of k at a time, in float. Runs on every CPU, and for float32 activations.
struct FloatArithmetic {
    using Element = float;
    using Weights = Vec;
    static constexpr int kStep = 1;
    static constexpr bool kInteger = false;

    static Vec accumulate(Vec sum, Weights w, Element x) { return fma(w, set1(x), sum); }

    static Element element(const float* x) { return *x; }
    static Element element(const Bf16* x) { return to_float(*x); }
    // Of kWidth steps.
    template <class T>
    static IntVec elements(const T* x) { return as_int(load(x)); }
};

#if defined(__AVX512BF16__)

// Two values of k at a time: products of bfloat16 pairs are exact and summed in float.
struct PairArithmetic {
    using Element = std::uint32_t;
    using Weights = __m512i;
    static constexpr int kStep = 2;
    static constexpr bool kInteger = false;

    static Vec accumulate(Vec sum, Weights w, Element x) {
        const __m512i pairs = _mm512_set1_epi32(static_cast<int>(x));
        return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)pairs);
    }

    static Element element(const Bf16* x) {
        Element pair;
        std::memcpy(&pair, x, sizeof pair);
        return pair;
    }
    // Of kWidth steps.
    static IntVec elements(const Bf16* x) { return load_bytes(x); }
};

#endif

#if !defined(__AVX512F__)

// Two values of k at a time as 16-bit integers, see integer_product.h. What a code stands for
// is (itself + Codes::kOffset) / Codes::kParts.
struct IntegerArithmetic {
    using Element = std::int32_t;
    using Weights = IntVec;
    static constexpr int kStep = 2;
    static constexpr bool kInteger = true;

    static IntVec accumulate(IntVec sum, IntVec w, Element x) {
        // In place and in this order: compilers let several products wait, and a sum in memory.
        asm volatile("vpaddd %1, %0, %0" : "+x"(sum) : "x"(multiply_pairs(w, set1(x))));
        return sum;
    }
};

#endif

}  // namespace baton
