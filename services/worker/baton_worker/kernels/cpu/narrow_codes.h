// Codes of five, three and two bits, codes that are looked up in a table, and the formats of them: the
// other types of GGUF, bitsandbytes.
#pragma once

#include <utility>

#include "formats.h"

namespace baton {

// Bit `From` of both halves of every lane at bit `To`, others anywhere.
template <int From, int To>
IntVec moved(IntVec word) {
    if constexpr (From <= To) {
        return shift_left<To - From>(word);
    } else {
        return shift_right<From - To>(word);
    }
}

// Whether a lookup of pairs takes the codes: it sees their lowest five bits, and tables are repeated,
// so that bits above a code need not be cleared.
template <class Arithmetic>
constexpr bool kLooksUp = Arithmetic::kStep == 2 && !Arithmetic::kInteger;

// Code `Step` of `Bits` bits in both halves of every lane.
template <class Arithmetic, int Bits, int Step>
IntVec bits_of(IntVec word) {
    const IntVec bits = shift_right<Bits * Step>(word);
    if constexpr (kLooksUp<Arithmetic>) return bits;
    constexpr std::int32_t kMask = (1 << Bits) - 1;
    return both(bits, set1(kMask << 16 | kMask));
}

// The same with one bit more, bit `From` of `upper`.
template <class Arithmetic, int Bits, int Step, int From>
IntVec bits_of(IntVec word, IntVec upper) {
    const IntVec highest = moved<From, Bits>(upper);
#if defined(__AVX512F__)
    if constexpr (kLooksUp<Arithmetic>) {
        constexpr std::int32_t kMask = (1 << Bits) - 1;
        return choose(set1(kMask << 16 | kMask), shift_right<Bits * Step>(word), highest);
    }
#endif
    const IntVec mask = set1(static_cast<std::int32_t>(0x00010001u << Bits));
    return either(bits_of<Arithmetic, Bits, Step>(word), both(highest, mask));
}

// What a code of `Bits` bits stands for: itself + Offset. Pairs of codes become weights.
template <int Bits, int Offset>
struct Counted {
    template <class Arithmetic, class Use>
    [[gnu::always_inline]] static void use_pair(IntVec left, IntVec right, int pair, Use& use) {
        if constexpr (Arithmetic::kInteger) {
            use(pair, left, right);
        } else if constexpr (Arithmetic::kStep == 2) {
#if defined(__AVX512BF16__)
            const __m512i values = table();
            use(pair, _mm512_permutexvar_epi16(left, values),
                _mm512_permutexvar_epi16(right, values));
#endif
        } else {
            use(2 * pair, low(left), low(right));
            use(2 * pair + 1, high(left), high(right));
        }
    }

  private:
    static Vec low(IntVec pair) { return to_float(add(both(pair, set1(0xffff)), set1(Offset))); }
    static Vec high(IntVec pair) { return to_float(add(shift_right<16>(pair), set1(Offset))); }

#if defined(__AVX512BF16__)
    // bfloat16 holds every one of them.
    static __m512i table() {
        const IntVec first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return (__m512i)_mm512_cvtne2ps_pbh(values(add(first, set1(16))), values(first));
    }
    static Vec values(IntVec index) {
        return to_float(add(both(index, set1((1 << Bits) - 1)), set1(Offset)));
    }
#endif
};

// Two bits: sixteen values of k in 32 bits, those of even k in the lower half: [Size / 16][column].
template <int Size, int Offset>
struct TwoBits {
    static constexpr int kSize = Size;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = Size / 4 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        for (int word = 0; word < Size / 16; ++word, bytes += 4 * kColumns) {
            const IntVec left = load_bytes(bytes), right = load_bytes(bytes + 2 * kColumns);
            steps<Arithmetic>(left, right, 8 * word, use, std::make_integer_sequence<int, 8>());
        }
    }

  private:
    template <class Arithmetic, class Use, int... Step>
    [[gnu::always_inline]] static void steps(IntVec left, IntVec right, int at, Use& use,
                      std::integer_sequence<int, Step...>) {
        (Counted<2, Offset>::template use_pair<Arithmetic>(
             bits_of<Arithmetic, 2, Step>(left), bits_of<Arithmetic, 2, Step>(right), at + Step,
             use),
         ...);
    }
};

// Three bits, sixteen values: the lower two as `TwoBits` has them, then 16 bits per column with the
// highest bits, those of even k in the lower byte.
template <int Offset>
struct ThreeBits {
    static constexpr int kSize = 16;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = 6 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        const std::uint8_t* bits = bytes + 4 * kColumns;
        steps<Arithmetic>(load_bytes(bytes), load_bytes(bytes + 2 * kColumns), upper(bits),
                          upper(bits + kColumns), use, std::make_integer_sequence<int, 8>());
    }

  private:
    // The bits of odd k in the upper half. Others are in between.
    static IntVec upper(const std::uint8_t* bytes) {
        const IntVec words = load_words(reinterpret_cast<const std::uint16_t*>(bytes));
        return either(words, shift_left<8>(words));
    }

    template <class Arithmetic, class Use, int... Step>
    [[gnu::always_inline]] static void steps(IntVec left, IntVec right, IntVec left_upper, IntVec right_upper, Use& use,
                      std::integer_sequence<int, Step...>) {
        (Counted<3, Offset>::template use_pair<Arithmetic>(
             bits_of<Arithmetic, 2, Step, Step>(left, left_upper),
             bits_of<Arithmetic, 2, Step, Step>(right, right_upper), Step, use),
         ...);
    }
};

// Five bits, 32 values: a word per column with the highest bits, those of even k in the lower half,
// then the lower four as `Nibbles` has them.
template <int Offset>
struct FiveBits {
    static constexpr int kSize = 32;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = 20 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        const IntVec left = load_bytes(bytes), right = load_bytes(bytes + 2 * kColumns);
        words<Arithmetic>(bytes + 4 * kColumns, left, right, use,
                          std::make_integer_sequence<int, 4>());
    }

  private:
    template <class Arithmetic, class Use, int... Word>
    [[gnu::always_inline]] static void words(const std::uint8_t* bytes, IntVec left, IntVec right, Use& use,
                      std::integer_sequence<int, Word...>) {
        (steps<Arithmetic, Word>(load_bytes(bytes + Word * 4 * kColumns),
                                 load_bytes(bytes + Word * 4 * kColumns + 2 * kColumns), left,
                                 right, use, std::make_integer_sequence<int, 4>()),
         ...);
    }

    template <class Arithmetic, int Word, class Use, int... Step>
    [[gnu::always_inline]] static void steps(IntVec left, IntVec right, IntVec left_upper, IntVec right_upper, Use& use,
                      std::integer_sequence<int, Step...>) {
        (Counted<5, Offset>::template use_pair<Arithmetic>(
             bits_of<Arithmetic, 4, Step, 4 * Word + Step>(left, left_upper),
             bits_of<Arithmetic, 4, Step, 4 * Word + Step>(right, right_upper), 4 * Word + Step,
             use),
         ...);
    }
};

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
