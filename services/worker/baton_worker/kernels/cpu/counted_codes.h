// Codes of two, three, five and six bits that count: a code c stands for c + Offset.
//
// A word of 32 bits has codes of even k in its lower half and of odd k in its upper half: a shift
// brings a pair of codes to the lowest bits of both halves. A half holds whole codes, and in its
// highest bits a part of one more, which takes two or more halves. A lookup of pairs sees the
// lowest bits only, so whole codes need no masks.
#pragma once

#include <utility>

#include "arithmetic.h"

namespace baton {

// The same bits in both halves of every lane.
inline IntVec halves(std::uint32_t bits) {
    return set1(static_cast<std::int32_t>(bits << 16 | bits));
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
            use(pair, looked_up(left), looked_up(right));
#endif
        } else {
            use(2 * pair, value_at<0>(left), value_at<0>(right));
            use(2 * pair + 1, value_at<16>(left), value_at<16>(right));
        }
    }

    // The whole codes of words, in order; above each there are other bits.
    template <class Arithmetic, class Use, int... Step>
    [[gnu::always_inline]] static void use_whole(IntVec left, IntVec right, int pair, Use& use,
                                                 std::integer_sequence<int, Step...>) {
        (use_pair<Arithmetic>(whole<Arithmetic>(shift_right<Bits * Step>(left)),
                              whole<Arithmetic>(shift_right<Bits * Step>(right)), pair + Step, use),
         ...);
    }

  private:
#if defined(__AVX512F__)
    // A lookup of floats sees five bits too, and six are masked where they become floats.
    static constexpr bool kMasksFloats = false;
#else
    static constexpr bool kMasksFloats = true;
#endif

    template <class Arithmetic>
    static IntVec whole(IntVec pair) {
        constexpr bool kMasks = Arithmetic::kStep == 2 ? Arithmetic::kInteger : kMasksFloats;
        return kMasks ? both(pair, halves((1 << Bits) - 1)) : pair;
    }

    // Of the code whose lowest bit is number `At`, 0 or 16, of every lane.
    template <int At>
    static Vec value_at(IntVec pair) {
#if defined(__AVX512F__)
        const IntVec lowest = At == 0 ? pair : shift_right<At>(pair);
        if constexpr (Bits <= 4) {
            return _mm512_permutexvar_ps(lowest, values(counted(0)));
        } else if constexpr (Bits == 5) {
            return _mm512_permutex2var_ps(values(counted(0)), lowest, values(counted(16)));
        } else {
            // As the lowest bits of the mantissa of a larger number, which is subtracted.
            constexpr int kMantissa = 23, kBias = 127, kExponent = kMantissa - At;
            const IntVec mask = set1(((1 << Bits) - 1) << At);
            const IntVec larger = set1((kBias + kExponent) << kMantissa);
            const Vec sum = as_float(_mm512_ternarylogic_epi32(pair, mask, larger, 0xea));
            return sub(sum, set1(static_cast<float>((1 << kExponent) - Offset)));
        }
#else
        const IntVec code = At == 0 ? both(pair, set1(0xffff)) : shift_right<16>(pair);
        return to_float(add(code, set1(Offset)));
#endif
    }

#if defined(__AVX512F__)
    static IntVec counted(int first) {
        const IntVec count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return add(count, set1(first));
    }
    static Vec values(IntVec index) {
        return to_float(add(both(index, set1((1 << Bits) - 1)), set1(Offset)));
    }
#endif

#if defined(__AVX512BF16__)
    // A table has 32 entries, of which fewer repeat themselves; two have 64.
    static __m512i looked_up(IntVec pair) {
        if constexpr (Bits <= 5) {
            return _mm512_permutexvar_epi16(pair, table(0));
        } else {
            return _mm512_permutex2var_epi16(table(0), pair, table(32));
        }
    }
    // bfloat16 holds every one of them.
    static __m512i table(int first) {
        const Vec high = values(counted(first + 16)), low = values(counted(first));
        return (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
#endif
};

// Two bits: eight codes in each half, [Size / 16][column].
template <int Size, int Offset>
struct TwoBits {
    static constexpr int kSize = Size;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = Size / 4 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        for (int word = 0; word < Size / 16; ++word, bytes += 4 * kColumns) {
            const IntVec left = load_bytes(bytes), right = load_bytes(bytes + 2 * kColumns);
            Counted<2, Offset>::template use_whole<Arithmetic>(
                left, right, 8 * word, use, std::make_integer_sequence<int, 8>());
        }
    }
};

// Three bits, sixteen values: a word per column with five codes in each half, then two bytes, of even
// and of odd k, with two. The eighth has its lowest bit in the word and the others in the byte.
template <int Offset>
struct ThreeBits {
    static constexpr int kSize = 16;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = 6 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        using Code = Counted<3, Offset>;
        const IntVec left = load_bytes(bytes), right = load_bytes(bytes + 2 * kColumns);
        Code::template use_whole<Arithmetic>(left, right, 0, use,
                                             std::make_integer_sequence<int, 5>());
        const IntVec left_rest = rest(bytes + 4 * kColumns), right_rest = rest(bytes + 5 * kColumns);
        Code::template use_whole<Arithmetic>(left_rest, right_rest, 5, use,
                                             std::make_integer_sequence<int, 2>());
        Code::template use_pair<Arithmetic>(joined(left, left_rest), joined(right, right_rest), 7,
                                            use);
    }

  private:
    // The bytes of odd k in the upper half.
    static IntVec rest(const std::uint8_t* bytes) {
        const IntVec words = load_words(reinterpret_cast<const std::uint16_t*>(bytes));
        return either(words, shift_left<8>(words));
    }
    static IntVec joined(IntVec word, IntVec rest) {
        return with_bits(shift_words_right<15>(word), shift_right<5>(rest), halves(6));
    }
};

// Five bits, 32 values: five words per column with three codes in each half. The highest bits of
// the words are the sixteenth, from the lowest bit on.
template <int Offset>
struct FiveBits {
    static constexpr int kSize = 32;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = 20 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        IntVec left_last = set1(0), right_last = set1(0);
        words<Arithmetic>(bytes, left_last, right_last, use, std::make_integer_sequence<int, 5>());
        Counted<5, Offset>::template use_pair<Arithmetic>(left_last, right_last, 15, use);
    }

  private:
    template <class Arithmetic, class Use, int... Word>
    [[gnu::always_inline]] static void words(const std::uint8_t* bytes, IntVec& left_last,
                                             IntVec& right_last, Use& use,
                                             std::integer_sequence<int, Word...>) {
        (word<Arithmetic, Word>(bytes + Word * 4 * kColumns, left_last, right_last, use), ...);
    }

    template <class Arithmetic, int Word, class Use>
    [[gnu::always_inline]] static void word(const std::uint8_t* bytes, IntVec& left_last,
                                            IntVec& right_last, Use& use) {
        const IntVec left = load_bytes(bytes), right = load_bytes(bytes + 2 * kColumns);
        Counted<5, Offset>::template use_whole<Arithmetic>(
            left, right, 3 * Word, use, std::make_integer_sequence<int, 3>());
        left_last = with_bits(left_last, shift_right<15 - Word>(left), halves(1 << Word));
        right_last = with_bits(right_last, shift_right<15 - Word>(right), halves(1 << Word));
    }
};

// Six bits, sixteen values: three words per column with two codes in each half. The seventh and the
// eighth have their lower four bits in the first and the second word, the others in the third.
template <int Offset>
struct SixBits {
    static constexpr int kSize = 16;
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr int kBytes = 12 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        using Code = Counted<6, Offset>;
        const IntVec left[] = {word(bytes, 0), word(bytes, 1), word(bytes, 2)};
        bytes += 2 * kColumns;
        const IntVec right[] = {word(bytes, 0), word(bytes, 1), word(bytes, 2)};
#pragma GCC unroll 3
        for (int i = 0; i < 3; ++i) {
            Code::template use_whole<Arithmetic>(left[i], right[i], 2 * i, use,
                                                 std::make_integer_sequence<int, 2>());
        }
        Code::template use_pair<Arithmetic>(joined<8>(left[0], left[2]),
                                            joined<8>(right[0], right[2]), 6, use);
        Code::template use_pair<Arithmetic>(joined<10>(left[1], left[2]),
                                            joined<10>(right[1], right[2]), 7, use);
    }

  private:
    static IntVec word(const std::uint8_t* bytes, int number) {
        return load_bytes(bytes + number * 4 * kColumns);
    }
    template <int Shift>
    static IntVec joined(IntVec lower, IntVec upper) {
        return with_bits(shift_words_right<12>(lower), shift_right<Shift>(upper), halves(0x30));
    }
};

}  // namespace baton
