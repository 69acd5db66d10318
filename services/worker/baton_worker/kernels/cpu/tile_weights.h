// Weights as tiles read them: [k / 2][column][2], a stretch of k at a time.
#pragma once

#if defined(__AMX_BF16__)

#include <algorithm>
#include <cstring>

#include "product.h"
#include "tiles.h"

namespace baton {
namespace {

constexpr int kStretch = 256;  // values of k whose weights are made ready for tiles at once
constexpr int kStretchBytes = kStretch / 2 * kPairBytes;
static_assert(kStretch % kSegment == 0);

// Zeros from `values` of k to the next whole tile.
template <int Depth>
void fill_up(std::uint8_t* to, std::int64_t values) {
    const std::int64_t whole = (values + Depth - 1) / Depth * Depth;
    std::memset(to + values / 2 * kPairBytes, 0, (whole - values) / 2 * kPairBytes);
}

template <class Format>
struct Ready {
    // A group of codes is a tile: its sum is scaled.
    static constexpr int kDepth = Format::kChunk / Format::kGroups;
    static_assert(kDepth <= 2 * kTileRows && kStretch % Format::kChunk == 0);

    static std::int64_t panel_bytes(const Weight& weight) {
        return weight.depth / Format::kChunk * Format::kBytes;
    }

    template <class Ask>
    static const std::uint8_t* weights(const Weight& weight, std::int64_t panel, std::int64_t first,
                                       std::int64_t end, std::uint8_t* to, const Ask& ask) {
        const std::uint8_t* chunk = chunk_of(weight, panel, first);
        std::uint8_t* at = to;
        for (std::int64_t k = first; k < end; k += Format::kChunk, chunk += Format::kBytes) {
            ask(chunk, Format::kBytes);
            for (int group = 0; group < Format::kGroups; ++group, at += kDepth / 2 * kPairBytes) {
                const auto keep = [at](int step, auto left, auto right) {
                    store_bytes(at + step * kPairBytes, left);
                    store_bytes(at + step * kPairBytes + kVectorBytes, right);
                };
                Format::template unpack<PairArithmetic>(chunk, group, keep);
            }
        }
        return to;
    }

    static const std::uint8_t* chunk_of(const Weight& weight, std::int64_t panel,
                                        std::int64_t first) {
        const std::int64_t chunks = first / Format::kChunk;
        return weight.panels + panel * panel_bytes(weight) + chunks * Format::kBytes;
    }
};

// Lies in memory as it is read. Only an odd end is copied.
template <>
struct Ready<Bfloat16> {
    static constexpr int kDepth = 2 * kTileRows;

    static std::int64_t panel_bytes(const Weight& weight) {
        return (weight.depth + Bfloat16::kChunk - 1) / Bfloat16::kChunk * kPairBytes;
    }

    // The product prefetches these weights itself.
    template <class Ask>
    static const std::uint8_t* weights(const Weight& weight, std::int64_t panel, std::int64_t first,
                                       std::int64_t end, std::uint8_t* to, const Ask&) {
        const std::int64_t bytes = panel_bytes(weight), begin = first / 2 * kPairBytes;
        const std::uint8_t* from = weight.panels + panel * bytes + begin;
        const std::int64_t pairs = (end - first + 1) / 2, values = 2 * pairs;
        if (values % kDepth == 0) return from;
        std::memcpy(to, from, pairs * kPairBytes);
        fill_up<kDepth>(to, values);
        return to;
    }
};

template <>
struct Ready<Compact> {
    static constexpr int kDepth = 2 * kTileRows;

    static std::int64_t panel_bytes(const Weight& weight) {
        return units_of(weight.depth) * kUnitBytes;
    }

    template <class Ask>
    static const std::uint8_t* weights(const Weight& weight, std::int64_t panel, std::int64_t first,
                                       std::int64_t end, std::uint8_t* to, const Ask& ask) {
        const CompactPanels panels = weight.compact();
        const std::int64_t segments = segments_of(end);
        std::uint8_t* at = to;
        for (std::int64_t segment = first / kSegment; segment < segments; ++segment) {
            panels.prefetch_others(panel, segment);
            const auto of_unit = [&](const std::uint8_t* unit) { ask(unit, kUnitBytes); };
            panels.expand(panel, segment, at, of_unit);
            at += kSegmentBytes;
        }
        fill_up<kDepth>(to, std::min(segments * kSegment, units_of(weight.depth) * kUnit) - first);
        return to;
    }
};

}  // namespace
}  // namespace baton

#endif
