// bfloat16 weights in twelve bits, to the last bit what they were.
//
// Where few rows share a product, memory decides how long it takes. The eight bits of an exponent
// say little: nearly all weights of a column lie within a factor of 2^15 of its largest. So a
// weight keeps sign and mantissa, a byte, and as four bits how far its exponent is above its
// column's base; none at all says that the exponent is zero, as that of the number zero. Those few
// whose exponent is further away are exceptions: they are listed with their values and patched in
// when the others have been expanded. (DFloat11, Zhang et al. 2025, arXiv:2504.11651, codes the
// same redundancy; a fixed width needs no table to be walked.)
//
// A panel is a stream of units of kUnit values of k, each three vectors of 16-bit words instead of
// the four V0 to V3 of the plain format's two chunks:
//
//     vector 0     the four bits of V0 to V3, those of V0 lowest
//     vector 1     sign of V0, mantissa of V1, sign of V1, mantissa of V0, from the highest bit
//     vector 2     the same of V2 and V3
#pragma once

#include <algorithm>

#include "formats.h"

namespace baton {

// What an expanded panel looks like.
struct Compact : Bfloat16 {};

constexpr int kUnit = 2 * Bfloat16::kChunk;          // values of k
constexpr int kVectorBytes = sizeof(IntVec);
constexpr int kUnitBytes = 3 * kVectorBytes;
constexpr int kPlainUnitBytes = 4 * kVectorBytes;
constexpr int kSegmentUnits = 16;                    // whose exceptions are listed together
constexpr int kSegment = kSegmentUnits * kUnit;      // values of k
constexpr int kSegmentBytes = kSegmentUnits * kPlainUnitBytes;  // expanded

constexpr std::uint16_t kSignAndMantissa = 0x807f;
constexpr std::uint16_t kExponent = 0x7f80;
constexpr int kMantissaBits = 7;
constexpr int kReach = 15;  // the largest distance of an exponent from its base

inline std::int64_t units_of(std::int64_t depth) { return (depth + kUnit - 1) / kUnit; }
inline std::int64_t segments_of(std::int64_t depth) { return (depth + kSegment - 1) / kSegment; }
inline IntVec set1_words(std::uint16_t word) { return set1(static_cast<int>(word * 0x10001u)); }

// Nibble `Vector` of every word, in the place of an exponent's lowest bits.
template <int Vector>
IntVec distance(IntVec nibbles) {
    constexpr int kShift = kMantissaBits - 4 * Vector;
    const IntVec mask = set1_words(kReach << kMantissaBits);
    if constexpr (kShift > 0) return both(shift_words_left<kShift>(nibbles), mask);
    return both(shift_words_right<-kShift>(nibbles), mask);
}

// The unit's vector `Vector` of the plain format.
template <int Vector>
IntVec expand_vector(const std::uint8_t* unit, IntVec base) {
    IntVec word = load_bytes(unit + (1 + Vector / 2) * kVectorBytes);
    if constexpr (Vector % 2 == 1) word = swap_bytes(word);
    const IntVec far = distance<Vector>(load_bytes(unit));
    return add_words_where(far, either(both(word, set1_words(kSignAndMantissa)), far), base);
}

// Of two vectors of columns.
struct Words {
    IntVec left, right;
};

// Two chunks of the plain format.
struct ExpandedUnit {
    Words first, second;
};

inline ExpandedUnit expand(const std::uint8_t* unit, Words bases) {
    return {{expand_vector<0>(unit, bases.left), expand_vector<1>(unit, bases.right)},
            {expand_vector<2>(unit, bases.left), expand_vector<3>(unit, bases.right)}};
}

inline void store(std::uint8_t* to, const ExpandedUnit& unit) {
    store_bytes(to, unit.first.left);
    store_bytes(to + kVectorBytes, unit.first.right);
    store_bytes(to + 2 * kVectorBytes, unit.second.left);
    store_bytes(to + 3 * kVectorBytes, unit.second.right);
}

// A weight that does not fit into twelve bits: its word within the expanded segment, its value.
struct Exception {
    std::uint16_t at;
    Bf16 value;
};

// The exceptions of a segment on a way through it in halves of units, each a vector of left and one
// of right columns: those halves that have one pass through memory, the others stay in registers.
class Patches {
  public:
    Patches(const Exception* first, const Exception* end) : next_(first), end_(end) { look(); }

    void apply(int half, IntVec& left, IntVec& right) {
        if (half != due_) [[likely]] return;
        alignas(64) Bf16 words[kHalfWords];
        store_bytes(words, left);
        store_bytes(words + kHalfWords / 2, right);
        for (; half == due_; look()) {
            words[next_->at % kHalfWords] = next_->value;
            ++next_;
        }
        left = load_bytes(words);
        right = load_bytes(words + kHalfWords / 2);
    }

  private:
    static constexpr int kHalfWords = kPlainUnitBytes / 2 / sizeof(Bf16);

    void look() { due_ = next_ == end_ ? -1 : next_->at / kHalfWords; }

    const Exception *next_, *end_;
    int due_;  // the half that the next one is in
};

// A packed weight.
struct CompactPanels {
    const std::uint8_t* units;
    const std::int32_t* bases;    // [panels, kColumns], twice in the exponents of two words
    const std::uint32_t* starts;  // of the exceptions of each segment, [panels * segments + 1]
    const Exception* exceptions;
    std::int64_t depth;

    const std::uint8_t* panel(std::int64_t number) const {
        return units + number * units_of(depth) * kUnitBytes;
    }
    const std::uint8_t* segment(std::int64_t panel, std::int64_t number) const {
        return this->panel(panel) + number * kSegmentUnits * kUnitBytes;
    }

    // Ask for what is not in the stream of units: the next panel's bases, later exceptions.
    [[gnu::always_inline]] void prefetch_others(std::int64_t panel, std::int64_t segment) const {
        const std::uint32_t* start = starts + panel * segments_of(depth) + segment;
        constexpr int kLine = 64;
        prefetch(reinterpret_cast<const std::uint8_t*>(start) + kLine, 1);
        prefetch(reinterpret_cast<const std::uint8_t*>(exceptions + *start) + kLine, 1);
        if (segment > 0) return;
        const std::int32_t* next = bases + (panel + 1) * kColumns;
        prefetch(reinterpret_cast<const std::uint8_t*>(next), kColumns * sizeof *next);
    }

    Patches patches(std::int64_t panel, std::int64_t segment) const {
        const std::uint32_t* start = starts + panel * segments_of(depth) + segment;
        return {exceptions + start[0], exceptions + start[1]};
    }

    int units_in(std::int64_t segment) const {
        const std::int64_t left = units_of(depth) - segment * kSegmentUnits;
        return static_cast<int>(std::min<std::int64_t>(kSegmentUnits, left));
    }

    Words bases_of(std::int64_t panel) const {
        const std::int32_t* base = bases + panel * kColumns;
        return {load_bytes(base), load_bytes(base + kWidth)};
    }

    // A segment of a panel in the plain format. `ask` gets every unit before it is read.
    template <class Ask>
    void expand(std::int64_t panel, std::int64_t segment, std::uint8_t* to, Ask&& ask) const {
        const std::uint8_t* unit = this->segment(panel, segment);
        const Words known = bases_of(panel);
        const int count = units_in(segment);
        for (int i = 0; i < count; ++i, unit += kUnitBytes) {
            ask(unit);
            store(to + i * kPlainUnitBytes, baton::expand(unit, known));
        }
        patch(panel * segments_of(depth) + segment, to);
    }

    void patch(std::int64_t segment, std::uint8_t* to) const {
        for (std::uint32_t i = starts[segment]; i < starts[segment + 1]; ++i) {
            reinterpret_cast<Bf16*>(to)[exceptions[i].at] = exceptions[i].value;
        }
    }
};

// ---- One column, for lookups of single rows

// Where a column's value of an even k and the one after it are, as words of the plain format.
inline int word_of(int k, int column) {
    return (k / Bfloat16::kChunk * kColumns + column) * Bfloat16::kChunk + k % Bfloat16::kChunk;
}

// The value `k` of a unit without its exception.
inline Bf16 value_of(const std::uint8_t* unit, int k, int column, std::int32_t base) {
    constexpr int kWords = kVectorBytes / 2;
    const int at = word_of(k, column), vector = at / kWords, lane = at % kWords;
    const auto* words = reinterpret_cast<const std::uint16_t*>(unit);
    std::uint32_t word = words[(1 + vector / 2) * kWords + lane];
    if (vector % 2 == 1) word = word << 8 | word >> 8;
    const std::uint32_t nibble = words[lane] >> 4 * vector & kReach;
    const std::uint32_t exponent = nibble == 0 ? 0 : (nibble << kMantissaBits) + base;
    return static_cast<Bf16>((word & kSignAndMantissa) + exponent);
}

// Row `row` of the weight: column `row` of its panels.
inline void copy_row(const CompactPanels& from, std::int64_t row, Bf16* to) {
    const std::int64_t panel = row / kColumns, segments = segments_of(from.depth);
    const int column = static_cast<int>(row % kColumns);
    const std::uint8_t* unit = from.panel(panel);
    for (std::int64_t k = 0; k < from.depth; ++k) {
        const int inside = static_cast<int>(k % kUnit);
        to[k] = value_of(unit + k / kUnit * kUnitBytes, inside, column, from.bases[row]);
    }
    for (std::int64_t segment = 0; segment < segments; ++segment) {
        const std::uint32_t* start = from.starts + panel * segments + segment;
        for (std::uint32_t i = start[0]; i < start[1]; ++i) {
            const Exception found = from.exceptions[i];
            const int pair = found.at / Bfloat16::kChunk;
            if (pair % kColumns != column) continue;
            const int k = pair / kColumns * Bfloat16::kChunk + found.at % Bfloat16::kChunk;
            to[segment * kSegment + k] = found.value;
        }
    }
}

}  // namespace baton
