// How a bfloat16 weight becomes compact: count what will be exceptions, then write.
#pragma once

#include <cstring>

#include "compact.h"
#include "team.h"

namespace baton {

// A weight [rows, depth] as a checkpoint has it.
struct Original {
    const Bf16* values;
    std::int64_t rows, depth;
    std::int64_t stride;  // values between rows
    bool gated;           // a panel holds kWidth columns of the first half, then of the second

    std::int64_t per_panel() const { return gated ? kWidth : kColumns; }
    std::int64_t columns() const { return gated ? rows / 2 : rows; }
    std::int64_t panels() const { return (columns() + per_panel() - 1) / per_panel(); }

    // The values of a packed column; null if it is there only to fill its panel.
    const Bf16* column(std::int64_t panel, int number) const {
        const bool second = gated && number >= kWidth;
        const std::int64_t row = panel * per_panel() + (second ? number - kWidth : number);
        if (row >= columns()) return nullptr;
        return values + (row + (second ? columns() : 0)) * stride;
    }
};

// What is added to the distances of a column, where an exponent stands in a word.
inline std::uint16_t base_of(const Bf16* values, std::int64_t depth) {
    std::uint16_t largest = 0;
    for (std::int64_t k = 0; k < depth; ++k) {
        largest = std::max<std::uint16_t>(largest, values[k] & kExponent);
    }
    constexpr std::uint16_t kDistance = kReach << kMantissaBits;
    return largest > kDistance ? largest - kDistance : 0;
}

// How many exponents are neither above the base nor zero.
inline std::uint32_t too_far(const Bf16* values, std::int64_t count, std::uint16_t base) {
    std::uint16_t found = 0;
    for (std::int64_t k = 0; k < count; ++k) {
        const std::uint16_t exponent = values[k] & kExponent;
        found += (exponent <= base) & (exponent != 0);
    }
    return found;
}

// The bases of every column, and how many exceptions every segment will have.
inline void count(const Original& from, std::int32_t* bases, std::uint32_t* counts) {
    const std::int64_t segments = segments_of(from.depth);
    share(true, from.panels(), [&](std::int64_t begin, std::int64_t end) {
        std::fill(counts + begin * segments, counts + end * segments, 0u);
        for (std::int64_t i = begin * kColumns; i < end * kColumns; ++i) {
            const std::int64_t panel = i / kColumns;
            const Bf16* values = from.column(panel, static_cast<int>(i % kColumns));
            const std::uint16_t base = values ? base_of(values, from.depth) : 0;
            bases[i] = base * 0x10001;
            for (std::int64_t s = 0; values && s < segments; ++s) {
                const std::int64_t first = s * kSegment;
                const std::int64_t size = std::min<std::int64_t>(kSegment, from.depth - first);
                counts[panel * segments + s] += too_far(values + first, size, base);
            }
        }
    });
}

// A segment in the plain format, zeros where there is no weight.
inline void arrange(const Original& from, std::int64_t panel, std::int64_t segment, Bf16* to) {
    const std::int64_t first = segment * kSegment;
    const int size = static_cast<int>(std::min<std::int64_t>(kSegment, from.depth - first));
    std::fill(to, to + kSegment * kColumns, Bf16{0});
    for (int column = 0; column < kColumns; ++column) {
        const Bf16* values = from.column(panel, column);
        if (values == nullptr) continue;
        for (int k = 0; k < size; ++k) to[word_of(k, column)] = values[first + k];
    }
}

// The distances of four vectors from their bases, in the nibbles of one.
inline IntVec nibbles(const std::uint8_t* plain, Words bases) {
    IntVec words = set1(0);
    for (int i = 3; i >= 0; --i) {
        const IntVec exponents = both(load_bytes(plain + i * kVectorBytes), set1_words(kExponent));
        const IntVec distances = sub_words_saturated(exponents, i % 2 ? bases.right : bases.left);
        words = either(shift_words_left<4>(words), shift_words_right<kMantissaBits>(distances));
    }
    return words;
}

// Signs and mantissas of two vectors in one.
inline IntVec bytes(const std::uint8_t* plain) {
    const IntVec mask = set1_words(kSignAndMantissa);
    const IntVec first = both(load_bytes(plain), mask);
    return either(first, swap_bytes(both(load_bytes(plain + kVectorBytes), mask)));
}

inline void compress(const std::uint8_t* plain, Words bases, std::uint8_t* unit) {
    store_bytes(unit, nibbles(plain, bases));
    store_bytes(unit + kVectorBytes, bytes(plain));
    store_bytes(unit + 2 * kVectorBytes, bytes(plain + 2 * kVectorBytes));
}

// Whatever does not come back from twelve bits as it was is an exception; `counted` is how many
// there must be.
inline bool except(const Bf16* wanted, const Bf16* expanded, int size, Exception* to,
                   std::uint32_t counted) {
    std::uint32_t found = 0;
    for (int at = 0; at < size; ++at) {
        if (wanted[at] == expanded[at]) continue;
        if (found == counted) return false;
        to[found++] = {static_cast<std::uint16_t>(at), wanted[at]};
    }
    return found == counted;
}

// Write a segment to `units` and its exceptions to `exceptions`, which are those of `to`.
inline bool compact(const Original& from, const CompactPanels& to, std::int64_t panel,
                    std::int64_t segment, std::uint8_t* units, Exception* exceptions) {
    alignas(64) Bf16 plain[kSegment * kColumns], expanded[kSegment * kColumns];
    arrange(from, panel, segment, plain);
    const Words bases = to.bases_of(panel);
    const auto* source = reinterpret_cast<const std::uint8_t*>(plain);
    auto* returned = reinterpret_cast<std::uint8_t*>(expanded);
    const std::int64_t first = panel * units_of(from.depth) + segment * kSegmentUnits;
    const int count = to.units_in(segment);
    for (int i = 0; i < count; ++i) {
        std::uint8_t* unit = units + (first + i) * kUnitBytes;
        compress(source + i * kPlainUnitBytes, bases, unit);
        store(returned + i * kPlainUnitBytes, expand(unit, bases));
    }
    const std::uint32_t* start = to.starts + panel * segments_of(from.depth) + segment;
    const int size = count * kUnit * kColumns;
    return except(plain, expanded, size, exceptions + start[0], start[1] - start[0]);
}

// Write all; false if the counts are not those of this weight.
inline bool compact(const Original& from, const CompactPanels& to, std::uint8_t* units,
                    Exception* exceptions) {
    std::atomic<bool> fits{true};
    share(true, from.panels(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t panel = begin; panel < end; ++panel) {
            for (std::int64_t segment = 0; segment < segments_of(from.depth); ++segment) {
                if (!compact(from, to, panel, segment, units, exceptions)) fits = false;
            }
        }
    });
    return fits;
}

}  // namespace baton
