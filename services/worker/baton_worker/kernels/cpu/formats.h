// Layouts of packed weights.
//
// A weight [N, K] is cut into panels of kColumns output columns. A panel is one stream of bytes in
// the order in which the product reads it, so that one row runs at the speed of memory. Within a
// panel, chunks of kChunk values of k follow one another. `unpack` turns a group of a chunk into
// weights of two vectors of columns and hands them, step by step, to `use(step, left, right)`.
//
// Quantised weights are codes, and per group and column a scale and perhaps a minimum, kept at the
// precision at which they were given: w = scale * code + minimum. A code is a whole number or a small
// float. The product of a group is summed over codes, which are exact in every arithmetic, and scaled
// then.
#pragma once

#include <limits>

#include "counted_codes.h"

namespace baton {

struct Pair {
    Vec left, right;
};

// What plain formats say about groups: there are none.
struct Plain {
    static constexpr int kGroups = 1;
    static constexpr bool kScaled = false, kHasMinimum = false;
};

struct Float32 : Plain {
    static constexpr int kChunk = 1;
    static constexpr int kBytes = 4 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, int, Use&& use) {
        const auto* w = reinterpret_cast<const float*>(bytes);
        use(0, load(w), load(w + kWidth));
    }
};

// Pairs of k side by side, as the bfloat16 instruction wants them: [column][2].
struct Bfloat16 : Plain {
    static constexpr int kChunk = 2;
    static constexpr int kBytes = 4 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, int, Use&& use) {
        steps<Arithmetic>(load_bytes(bytes), load_bytes(bytes + kBytes / 2), use);
    }

    template <class Arithmetic, class Use>
    static void steps(IntVec left, IntVec right, Use&& use) {
        if constexpr (Arithmetic::kStep == 2) {
            use(0, left, right);
        } else {
            use(0, as_float(shift_left<16>(left)), as_float(shift_left<16>(right)));
            const IntVec upper = set1(static_cast<std::int32_t>(0xffff0000));
            use(1, as_float(both(left, upper)), as_float(both(right, upper)));
        }
    }
};

// ---- Codes of quantised weights, `Size` values of k

// Signed bytes: [Size / 2][column][2].
template <int Size>
struct Bytes {
    static constexpr int kSize = Size;
    static constexpr int kOffset = 0, kParts = 1;
    static constexpr bool kIsQuick = true;  // As integers: an instruction for each step.
    static constexpr int kBytes = Size * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        const auto* codes = reinterpret_cast<const std::int8_t*>(bytes);
        for (int pair = 0; pair < Size / 2; ++pair, codes += 2 * kColumns) {
            if constexpr (Arithmetic::kInteger) {
                use(pair, load_signed_pairs(codes), load_signed_pairs(codes + kColumns));
            } else if constexpr (Arithmetic::kStep == 2) {
#if defined(__AVX512BF16__)
                use(pair, as_pairs(codes), as_pairs(codes + kColumns));
#endif
            } else {
                const IntVec left = load_signed_pairs(codes);
                const IntVec right = load_signed_pairs(codes + kColumns);
                use(2 * pair, to_float(shift_right_signed<16>(shift_left<16>(left))),
                    to_float(shift_right_signed<16>(shift_left<16>(right))));
                use(2 * pair + 1, to_float(shift_right_signed<16>(left)),
                    to_float(shift_right_signed<16>(right)));
            }
        }
    }

  private:
#if defined(__AVX512BF16__)
    static __m512i as_pairs(const std::int8_t* codes) {
#if defined(__AMX_BF16__)
        // Those CPUs take longer to round floats than to cut them, and codes need no rounding.
        const IntVec pairs = load_signed_pairs(codes), even = _mm512_madd_epi16(pairs, set1(1));
        const IntVec low = shift_right<16>(as_int(to_float(even)));
        const IntVec high = as_int(to_float(shift_right_signed<16>(pairs)));
        return with_bits(low, high, set1(static_cast<std::int32_t>(0xffff0000)));
#else
        const Vec low = to_float(load_signed(codes)), high = to_float(load_signed(codes + kWidth));
        return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#endif
    }
#endif
};

// 8-bit floats (E4M3), laid out as `Bytes`; a code counts as a 256th of itself.
template <int Size>
struct FloatBytes {
    static constexpr int kSize = Size;
    static constexpr int kParts = 0;  // No whole numbers.
    static constexpr int kBytes = Size * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        const auto* codes = reinterpret_cast<const std::int8_t*>(bytes);
        for (int pair = 0; pair < Size / 2; ++pair, codes += 2 * kColumns) {
            if constexpr (Arithmetic::kStep == 2) {
#if defined(__AVX512BF16__)
                use(pair, as_pairs(codes), as_pairs(codes + kColumns));
#endif
            } else {
                const IntVec left = halves(codes), right = halves(codes + kColumns);
                use(2 * pair, low_halves(left), low_halves(right));
                use(2 * pair + 1, low_halves(shift_right<16>(left)),
                    low_halves(shift_right<16>(right)));
            }
        }
    }

  private:
    static IntVec halves(const std::int8_t* codes) {
        const IntVec signs = set1(static_cast<std::int32_t>(0xbfffbfff));
        return both(shift_words_left<7>(load_signed_pairs(codes)), signs);
    }

#if defined(__AVX512BF16__)
    static __m512i as_pairs(const std::int8_t* codes) {
        return (__m512i)_mm512_cvtne2ps_pbh(load_e4m3(codes + kWidth), load_e4m3(codes));
    }
#endif
};

// What a nibble n stands for: n + Offset.
template <int Offset>
struct Whole {
    static constexpr int kOffset = Offset, kParts = 1;
    static constexpr bool kIsLookedUp = false;
#if defined(__AVX512F__)
    static Vec values() {
        const Vec nibbles = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return add(nibbles, set1(static_cast<float>(Offset)));
    }
#else
    // Of the lowest bits of every lane.
    static Vec of(IntVec nibbles) {
        return to_float(add(both(nibbles, set1(15)), set1(Offset)));
    }
#endif
};

// Parts of one of the values of a table, moved so that bytes hold them.
constexpr int kMoved = 128;
struct MovedTable {
    std::uint8_t bytes[16];

    constexpr MovedTable(const float (&values)[16], int parts) : bytes() {
        for (int i = 0; i < 16; ++i)
            bytes[i] = static_cast<std::uint8_t>(static_cast<int>(values[i] * parts) + kMoved);
    }
};

// A 4-bit float (E2M1).
inline constexpr float kE2m1Table[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                         -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
struct FourBitFloat {
    static constexpr int kOffset = -kMoved, kParts = 2;
    static constexpr bool kIsLookedUp = true;
    static constexpr MovedTable kMovedTable{kE2m1Table, kParts};

#if defined(__AVX512F__)
    static Vec values() {
        return _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f,
                              -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    }
#else
    static Vec of(IntVec nibbles) {
        // A lookup takes three bits; the fourth is the sign.
        const Vec sizes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
        const IntVec size = as_int(_mm256_permutevar8x32_ps(sizes, nibbles));
        const IntVec sign = set1(std::numeric_limits<std::int32_t>::min());
        return as_float(either(size, both(shift_left<28>(nibbles), sign)));
    }
#endif
};

// Eight values of k in 32 bits, those of even k in the lower half: [Size / 8][column].
template <int Size, class Value>
struct Nibbles {
    static constexpr int kSize = Size;
    static constexpr int kOffset = Value::kOffset, kParts = Value::kParts;
    static constexpr bool kIsQuick = !Value::kIsLookedUp;
    static constexpr int kBytes = Size / 2 * kColumns;

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* bytes, Use&& use) {
        constexpr int kSteps = 8 / Arithmetic::kStep;
#pragma GCC unroll 4
        for (int word = 0; word < Size / 8; ++word, bytes += 4 * kColumns) {
            const IntVec left = load_bytes(bytes), right = load_bytes(bytes + 2 * kColumns);
            steps<Arithmetic>(left, right, word * kSteps, use);
        }
    }

  private:
    template <class Arithmetic, class Use>
    static void steps(IntVec left, IntVec right, int at, Use& use) {
        if constexpr (Arithmetic::kInteger) {
            integer_steps(left, right, at, use);
        } else if constexpr (Arithmetic::kStep == 2) {
#if defined(__AVX512BF16__)
            const __m512i values = table();
            use(at, as_pairs<0>(left, values), as_pairs<0>(right, values));
            use(at + 1, as_pairs<4>(left, values), as_pairs<4>(right, values));
            use(at + 2, as_pairs<8>(left, values), as_pairs<8>(right, values));
            use(at + 3, as_pairs<12>(left, values), as_pairs<12>(right, values));
#endif
        } else {
            use(at, as_floats<0>(left), as_floats<0>(right));
            use(at + 1, as_floats<16>(left), as_floats<16>(right));
            use(at + 2, as_floats<4>(left), as_floats<4>(right));
            use(at + 3, as_floats<20>(left), as_floats<20>(right));
            use(at + 4, as_floats<8>(left), as_floats<8>(right));
            use(at + 5, as_floats<24>(left), as_floats<24>(right));
            use(at + 6, as_floats<12>(left), as_floats<12>(right));
            use(at + 7, as_floats<28>(left), as_floats<28>(right));
        }
    }

    template <class Use>
    static void integer_steps(IntVec left, IntVec right, int at, Use& use) {
#if !defined(__AVX512F__)
        if constexpr (Value::kIsLookedUp) {
            // By bytes, values 0 and 4, 1 and 5 of k; then 2 and 6, 3 and 7.
            const IntVec nibbles = set1(0x0f0f0f0f), lower = set1(0x00ff00ff);
            const std::uint8_t* table = Value::kMovedTable.bytes;
            const IntVec a = look_up(table, both(left, nibbles));
            const IntVec b = look_up(table, both(right, nibbles));
            use(at, both(a, lower), both(b, lower));
            use(at + 2, shift_words_right<8>(a), shift_words_right<8>(b));
            const IntVec c = look_up(table, both(shift_right<4>(left), nibbles));
            const IntVec d = look_up(table, both(shift_right<4>(right), nibbles));
            use(at + 1, both(c, lower), both(d, lower));
            use(at + 3, shift_words_right<8>(c), shift_words_right<8>(d));
        } else {
            const IntVec lowest = set1(0x000f000f);
            use(at, both(left, lowest), both(right, lowest));
            use(at + 1, both(shift_right<4>(left), lowest), both(shift_right<4>(right), lowest));
            use(at + 2, both(shift_right<8>(left), lowest), both(shift_right<8>(right), lowest));
            use(at + 3, shift_words_right<12>(left), shift_words_right<12>(right));
        }
#endif
    }

    template <int Shift>
    static Vec as_floats(IntVec word) {
#if defined(__AVX512F__)
        // A lookup takes four bits.
        return _mm512_permutexvar_ps(shift_right<Shift>(word), Value::values());
#else
        return Value::of(shift_right<Shift>(word));
#endif
    }

#if defined(__AVX512BF16__)
    // The bfloat16 of every nibble, twice: a lookup takes five bits, of which the fifth is noise.
    static __m512i table() {
        return (__m512i)_mm512_cvtne2ps_pbh(Value::values(), Value::values());
    }

    template <int Shift>
    static __m512i as_pairs(__m512i word, __m512i values) {
        return _mm512_permutexvar_epi16(shift_right<Shift>(word), values);
    }
#endif
};

// ---- Quantised formats

inline Pair load_halves(const std::uint8_t* bytes) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(bytes);
    return {load_half(halves), load_half(halves + kWidth)};
}

inline Pair load_small(const std::uint8_t* bytes) {
    const auto* small = reinterpret_cast<const std::int8_t*>(bytes);
    return {to_float(load_signed(small)), to_float(load_signed(small + kWidth))};
}

inline Pair mul(Pair a, Pair b) { return {mul(a.left, b.left), mul(a.right, b.right)}; }

// A chunk is a group: half-precision scales, half-precision minima if any, codes.
template <class Codes, bool HasMinimum>
struct Grouped {
    using Values = Codes;
    static constexpr int kGroups = 1;
    static constexpr int kChunk = Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = HasMinimum;
    static constexpr int kHalves = 2 * kColumns;
    static constexpr int kCodes = HasMinimum ? 2 * kHalves : kHalves;
    static constexpr int kBytes = kCodes + Codes::kBytes;

    static Pair scale(const std::uint8_t* chunk, int) { return load_halves(chunk); }
    static Pair minimum(const std::uint8_t* chunk, int) { return load_halves(chunk + kHalves); }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int, Use&& use) {
        Codes::template unpack<Arithmetic>(chunk + kCodes, use);
    }
};

// A chunk is a group: half-precision scales, a byte per column that is added to its codes, codes. The
// minimum that the two make is exact in float.
template <class Codes>
struct Shifted {
    using Values = Codes;
    static constexpr int kGroups = 1;
    static constexpr int kChunk = Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = true;
    static constexpr int kHalves = 2 * kColumns;
    static constexpr int kCodes = kHalves + kColumns;
    static constexpr int kBytes = kCodes + Codes::kBytes;

    static Pair scale(const std::uint8_t* chunk, int) { return load_halves(chunk); }
    static Pair minimum(const std::uint8_t* chunk, int) {
        return mul(load_halves(chunk), load_small(chunk + kHalves));
    }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int, Use&& use) {
        Codes::template unpack<Arithmetic>(chunk + kCodes, use);
    }
};

// A chunk is 256 values of k (the "super-blocks" of GGUF): a half-precision factor of its scales
// and one of its minima, if any, then the groups, each with one-byte multipliers before its codes.
template <class Codes, bool HasMinimum>
struct SuperGrouped {
    using Values = Codes;
    static constexpr int kChunk = 256;
    static constexpr int kGroups = kChunk / Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = HasMinimum;
    static constexpr int kHalves = 2 * kColumns;
    static constexpr int kHead = HasMinimum ? 2 * kHalves : kHalves;
    static constexpr int kCodes = HasMinimum ? 2 * kColumns : kColumns;
    static constexpr int kGroupBytes = kCodes + Codes::kBytes;
    static constexpr int kBytes = kHead + kGroups * kGroupBytes;

    static Pair scale(const std::uint8_t* chunk, int group) {
        return mul(load_halves(chunk), load_small(at(chunk, group)));
    }
    static Pair minimum(const std::uint8_t* chunk, int group) {
        return mul(load_halves(chunk + kHalves), load_small(at(chunk, group) + kColumns));
    }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int group, Use&& use) {
        Codes::template unpack<Arithmetic>(at(chunk, group) + kCodes, use);
    }

  private:
    static const std::uint8_t* at(const std::uint8_t* chunk, int group) {
        return chunk + kHead + group * kGroupBytes;
    }
};

// A chunk is a group of 4-bit floats: a byte per column, the exponent of its scale with a bias of
// 127, codes. An exponent of -127 counts as a scale of zero.
struct Mxfp4 {
    using Codes = Nibbles<32, FourBitFloat>;
    using Values = Codes;
    static constexpr int kGroups = 1;
    static constexpr int kChunk = Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = false;
    static constexpr int kBytes = kColumns + Codes::kBytes;

    static Pair scale(const std::uint8_t* chunk, int) {
        const auto* exponents = reinterpret_cast<const std::int8_t*>(chunk);
        return {power(load_signed(exponents)), power(load_signed(exponents + kWidth))};
    }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int, Use&& use) {
        Codes::unpack<Arithmetic>(chunk + kColumns, use);
    }

  private:
    static Vec power(IntVec exponent) {
        return as_float(both(shift_left<23>(exponent), set1(0x7f800000)));
    }
};

inline Pair load_floats(const std::uint8_t* bytes) {
    const auto* floats = reinterpret_cast<const float*>(bytes);
    return {load(floats), load(floats + kWidth)};
}

// What makes an 8-bit float of its 256th.
inline Pair widened(Pair x) { return mul(x, {set1(256.0f), set1(256.0f)}); }

// A chunk is four groups of 4-bit floats: a factor of their scales per column, then the groups, each
// with its scales, 8-bit floats, before its codes.
struct Nvfp4 {
    using Codes = Nibbles<16, FourBitFloat>;
    using Values = Codes;
    static constexpr int kGroups = 4;
    static constexpr int kChunk = kGroups * Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = false;
    static constexpr int kHead = 4 * kColumns;
    static constexpr int kGroupBytes = kColumns + Codes::kBytes;
    static constexpr int kBytes = kHead + kGroups * kGroupBytes;

    static Pair scale(const std::uint8_t* chunk, int group) {
        const auto* scales = reinterpret_cast<const std::int8_t*>(at(chunk, group));
        const Pair given{load_e4m3(scales), load_e4m3(scales + kWidth)};
        return mul(widened(given), load_floats(chunk));
    }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int group, Use&& use) {
        Codes::unpack<Arithmetic>(at(chunk, group) + kColumns, use);
    }

  private:
    static const std::uint8_t* at(const std::uint8_t* chunk, int group) {
        return chunk + kHead + group * kGroupBytes;
    }
};

// A chunk is a group of 8-bit floats: float scales, codes.
struct Fp8 {
    using Codes = FloatBytes<32>;
    using Values = Codes;
    static constexpr int kGroups = 1;
    static constexpr int kChunk = Codes::kSize;
    static constexpr bool kScaled = true, kHasMinimum = false;
    static constexpr int kHead = 4 * kColumns;
    static constexpr int kBytes = kHead + Codes::kBytes;

    static Pair scale(const std::uint8_t* chunk, int) { return widened(load_floats(chunk)); }

    template <class Arithmetic, class Use>
    static void unpack(const std::uint8_t* chunk, int, Use&& use) {
        Codes::unpack<Arithmetic>(chunk + kHead, use);
    }
};

using Int8 = Grouped<Bytes<32>, false>;                       // GGUF Q8_0
using Int4 = Grouped<Nibbles<32, Whole<-8>>, false>;          // GGUF Q4_0
using Int4Minimum = Grouped<Nibbles<32, Whole<0>>, true>;     // GGUF Q4_1
using Int4Offset = Shifted<Nibbles<32, Whole<0>>>;            // AWQ, GPTQ; zeros negated
using Int4Super = SuperGrouped<Nibbles<32, Whole<0>>, true>;  // GGUF Q4_K, minima negated
using Int6Super = SuperGrouped<SixBits<-32>, false>;          // GGUF Q6_K

}  // namespace baton
