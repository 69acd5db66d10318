// Codes that are looked up in a table, and the formats that few checkpoints have: other types of GGUF,
// bitsandbytes.
#pragma once

#include "formats.h"

namespace baton {

// What a nibble stands for: an entry of a table, each a whole number of `1 / Parts`; no `Parts`: they
// are not.
template <const float (&Table)[16], int Parts = 0>
struct Looked {
    static constexpr int kOffset = -kMoved, kParts = Parts;
    static constexpr bool kIsLookedUp = true;
    static constexpr MovedTable kMovedTable{Table, Parts};

#if defined(__AVX512F__)
    static Vec values() { return load(Table); }
#else
    // A lookup takes three bits; the fourth chooses among two.
    static Vec of(IntVec nibbles) {
        const Vec low = _mm256_permutevar8x32_ps(load(Table), nibbles);
        const Vec high = _mm256_permutevar8x32_ps(load(Table + 8), nibbles);
        return _mm256_blendv_ps(low, high, as_float(shift_left<28>(nibbles)));
    }
#endif
};

// The tables of `quantized_weights.TABLES`.
inline constexpr float kIq4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr float kIq3XxsTable[16] = {1,  3,  5,  7,  9,  11,  13,  15.5,
                                      -1, -3, -5, -7, -9, -11, -13, -15.5};
inline constexpr float kIq3STable[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                    -1, -3, -5, -7, -9, -11, -13, -15};
inline constexpr float kIq2Table[16] = {1, 3.125, 5.375, 0, 0, 0, 0, 0, -1, -3.125, -5.375};
inline constexpr float kIq1Table[16] = {-1.125, -0.875, -0.125, 0.125, 0.875, 1.125};
// bitsandbytes: quantiles of a normal distribution (Dettmers et al. 2023, arXiv:2305.14314), and a
// float of four bits.
inline constexpr float kNf4Table[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The same in bfloat16, for inputs of it: every kernel rounds alike.
inline constexpr float kNf4RoundedTable[16] = {
    -1.0f, -0.6953125f, -0.5234375f, -0.39453125f,
    -0.28515625f, -0.1845703125f, -0.0908203125f, 0.0f,
    0.07958984375f, 0.1611328125f, 0.24609375f, 0.337890625f,
    0.44140625f, 0.5625f, 0.72265625f, 1.0f,
};
inline constexpr float kFp4Table[16] = {0, 0.0625, 8, 12, 4, 6, 2, 3, -0.0f, -0.0625, -8, -12, -4, -6, -2, -3};

// A chunk is some groups that share a half-precision scale per column, before them.
template <class Codes, int Groups>
struct HalfScaled {
    using Values = Codes;
    static constexpr int kGroups = Groups;
    static constexpr int kChunk = Groups * Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = false;
    static constexpr int kHead = 2 * kColumns;
    static constexpr int kBytes = kHead + Groups * Codes::kBytes;

    static Pair scale(const std::uint8_t* chunk, int) { return load_halves(chunk); }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int group, Use&& use) {
        Codes::template unpack<Arithmetic>(chunk + kHead + group * Codes::kBytes, use);
    }
};

// The same with a float.
template <class Codes, int Groups>
struct FloatScaled {
    using Values = Codes;
    static constexpr int kGroups = Groups;
    static constexpr int kChunk = Groups * Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = false;
    static constexpr int kHead = 4 * kColumns;
    static constexpr int kBytes = kHead + Groups * Codes::kBytes;

    static Pair scale(const std::uint8_t* chunk, int) { return load_floats(chunk); }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int group, Use&& use) {
        Codes::template unpack<Arithmetic>(chunk + kHead + group * Codes::kBytes, use);
    }
};

using Int5 = Grouped<FiveBits<-16>, false>;                            // GGUF Q5_0
using Int5Minimum = Grouped<FiveBits<0>, true>;                        // GGUF Q5_1
using Int5Super = SuperGrouped<FiveBits<0>, true>;                     // GGUF Q5_K, minima negated
using Int3Super = SuperGrouped<ThreeBits<-4>, false>;                  // GGUF Q3_K
using Int2Super = SuperGrouped<TwoBits<16, 0>, true>;                  // GGUF Q2_K, minima negated
using Ternary = HalfScaled<TwoBits<32, -1>, 8>;                        // GGUF TQ1_0, TQ2_0
using Iq4 = Grouped<Nibbles<32, Looked<kIq4Table, 1>>, false>;                 // GGUF IQ4_NL
using Iq4Super = SuperGrouped<Nibbles<32, Looked<kIq4Table, 1>>, false>;       // GGUF IQ4_XS
using Iq3XxsSuper = SuperGrouped<Nibbles<32, Looked<kIq3XxsTable, 2>>, false>; // GGUF IQ3_XXS
using Iq3SSuper = SuperGrouped<Nibbles<32, Looked<kIq3STable, 1>>, false>;     // GGUF IQ3_S
using Iq2Super = SuperGrouped<Nibbles<16, Looked<kIq2Table, 8>>, false>;       // GGUF IQ2_XXS, _XS and _S
using Iq1Super = SuperGrouped<Nibbles<16, Looked<kIq1Table, 8>>, false>;       // GGUF IQ1_S and _M
using Nf4 = FloatScaled<Nibbles<32, Looked<kNf4Table>>, 2>;                 // bitsandbytes NF4
using Nf4Rounded = FloatScaled<Nibbles<32, Looked<kNf4RoundedTable>>, 2>;
using Fp4 = FloatScaled<Nibbles<32, Looked<kFp4Table>>, 2>;                 // bitsandbytes FP4
using Int8Float = FloatScaled<Bytes<32>, 1>;                           // LLM.int8

}  // namespace baton
