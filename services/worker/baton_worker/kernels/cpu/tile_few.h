// A few rows times a quantised weight, on tiles and to their bits.
//
// Sums stay in registers while groups pass, and the weights of the next group are made ready beside
// the tiles of this one. Groups of sixteen values of k fill half a tile of weights: two of them are
// multiplied at once, each by rows that are zero where the other is.
#pragma once

#if defined(__AMX_BF16__)

#include <algorithm>
#include <cstring>

#include "tile_weights.h"

namespace baton {
namespace {

template <class Format>
class FewRows {
  public:
    static constexpr int kMost = 8;

    FewRows(const Call& call, int rows) : call_(call), rows_(rows) {
        const std::int64_t groups = call.weight.depth / kDepth, units = groups / kTogether;
        const std::size_t bytes = units * kUnitRows * kUnit * sizeof(Bf16);
        std::uint8_t* memory = workspace<kRows>(bytes + kMost * groups * sizeof(float));
        elements_ = reinterpret_cast<Bf16*>(memory);
        totals_ = reinterpret_cast<float*>(memory + bytes);
        pack();
        if constexpr (Format::kHasMinimum) {
            add_groups_up<kDepth>(x(0), call.stride, rows, groups, totals_);
        }
    }

    void run() const {
        const ProductShapes shapes(kUnitRows, kUnit);
        share(call_.worth_threads(rows_), call_.panels(), [&](std::int64_t from, std::int64_t to) {
            const Tiles tiles(shapes);
            for (std::int64_t panel = from; panel < to; ++panel) add_up(panel);
        });
    }

  private:
    static constexpr int kDepth = Ready<Format>::kDepth;
    static constexpr int kUnit = 2 * kTileRows;          // values of k that are multiplied at once
    static constexpr int kTogether = kUnit / kDepth;     // groups of them
    static constexpr int kUnitRows = kTogether * kMost;  // of a tile: the rows, for each group
    static constexpr int kReadyBytes = kUnit / 2 * kPairBytes;
    static constexpr int kGroupBytes = Format::kBytes / Format::kGroups;
    static constexpr std::int64_t kFar = 1 << 15;  // bytes that are asked for ahead
    static_assert(Format::kGroups % kTogether == 0 || Format::kGroups == 1);

    struct alignas(64) Part {
        float values[kUnitRows][kColumns];
    };

    struct Sums {
        Pair rows[kMost];
    };

    const Bf16* x(int row) const {
        return static_cast<const Bf16*>(call_.x) + row * call_.stride;
    }

    // [unit][group][row][kUnit], zeros in the rows that there are not and in other groups.
    void pack() {
        const std::int64_t units = call_.weight.depth / kUnit;
        std::memset(elements_, 0, units * kUnitRows * kUnit * sizeof(Bf16));
        for (int row = 0; row < rows_; ++row) {
            const Bf16* from = x(row);
            for (std::int64_t i = 0; i < units * kTogether; ++i, from += kDepth) {
                Bf16* to = elements_ + (i * kMost + row) * kUnit + i % kTogether * kDepth;
                std::memcpy(to, from, kDepth * sizeof(Bf16));
            }
        }
    }

    // What passes between the stages of a panel, for units of even and of odd number.
    struct Passing {
        alignas(64) std::uint8_t ready[2][kReadyBytes];
        Part parts[2];
    };

    void add_up(std::int64_t panel) const {
        Passing passing;
        Sums sums;
        for (Pair& row : sums.rows) row = {zero(), zero()};
        make_ready(panel, 0, passing.ready[0]);
        const std::int64_t end = call_.weight.depth / kUnit + 2;
        for (std::int64_t unit = 0; unit < end; unit += 2) {
            advance<0>(sums, panel, unit, passing);
            advance<1>(sums, panel, unit + 1, passing);
        }
        alignas(64) float finished[kMost][kColumns];
        for (int row = 0; row < kMost; ++row) {
            store(finished[row], sums.rows[row].left);
            store(finished[row] + kWidth, sums.rows[row].right);
        }
        const float* left = finished[0];
        finish<Bf16>(call_, panel, {left, left + kWidth, kColumns, 0, rows_});
    }

    // Four units at a time, each in a stage of its own, so that none waits for its last one.
    template <int Odd>
    [[gnu::always_inline]] void advance(Sums& sums, std::int64_t panel, std::int64_t unit,
                                        Passing& passing) const {
        const std::int64_t units = call_.weight.depth / kUnit;
        if (unit + 1 < units) make_ready(panel, unit + 1, passing.ready[1 - Odd]);
        if (unit < units) multiply<Odd>(elements_ + unit * kUnitRows * kUnit, passing.ready[Odd]);
        if (unit > 0 && unit <= units) keep<1 - Odd>(passing.parts[1 - Odd]);
        if (unit > 1 && unit <= units + 1) add_scaled(sums, panel, unit - 2, passing.parts[Odd]);
    }

    const std::uint8_t* chunk_of(std::int64_t panel, std::int64_t group) const {
        return Ready<Format>::chunk_of(call_.weight, panel, group * kDepth);
    }

    [[gnu::always_inline]] void make_ready(std::int64_t panel, std::int64_t unit,
                                           std::uint8_t* to) const {
        for (int i = 0; i < kTogether; ++i, to += kDepth / 2 * kPairBytes) {
            const std::int64_t number = unit * kTogether + i;
            const std::uint8_t* chunk = chunk_of(panel, number);
            const int group = number % Format::kGroups;
            prefetch_later(chunk + kFar + group * kGroupBytes, kGroupBytes);
            const auto keep = [to](int step, auto left, auto right) {
                store_bytes(to + step * kPairBytes, left);
                store_bytes(to + step * kPairBytes + kVectorBytes, right);
            };
            Format::template unpack<PairArithmetic>(chunk, group, keep);
        }
    }

    // Units take turns with two pairs of tiles, and a product is stored when the next one has begun:
    // stores that wait for it would fill the core's buffer of them. Numbers of tiles must be literals.
    template <int Odd>
    [[gnu::always_inline]] static void multiply(const Bf16* x, const std::uint8_t* weights) {
        constexpr int kRowBytes = kUnit * sizeof(Bf16);
        // As in BlockSums::load.
        asm volatile("" ::: "memory");
        if constexpr (Odd) {
            _tile_zero(2);
            _tile_zero(3);
            _tile_loadd(5, x, kRowBytes);
            _tile_loadd(6, weights, kPairBytes);
            _tile_loadd(7, weights + kVectorBytes, kPairBytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        } else {
            clear_sums<false>();
            add_product<false, kUnit>(weights, x, 0);
        }
    }

    template <int Odd>
    [[gnu::always_inline]] static void keep(Part& part) {
        if constexpr (Odd) {
            _tile_stored(2, part.values[0], sizeof part.values[0]);
            _tile_stored(3, part.values[0] + kWidth, sizeof part.values[0]);
        } else {
            _tile_stored(0, part.values[0], sizeof part.values[0]);
            _tile_stored(1, part.values[0] + kWidth, sizeof part.values[0]);
        }
    }

    [[gnu::always_inline]] void add_scaled(Sums& sums, std::int64_t panel, std::int64_t unit,
                                           const Part& part) const {
#pragma GCC unroll 2
        for (int i = 0; i < kTogether; ++i) {
            const std::int64_t number = unit * kTogether + i;
            const std::uint8_t* chunk = chunk_of(panel, number);
            const int group = number % Format::kGroups;
            const Pair scale = Format::scale(chunk, group);
            Pair minimum{};
            if constexpr (Format::kHasMinimum) minimum = Format::minimum(chunk, group);
            const float* totals = totals_ + number * rows_;
#pragma GCC unroll 8
            for (int row = 0; row < kMost; ++row) {
                const float* more = part.values[i * kMost + row];
                Pair& sum = sums.rows[row];
                sum = {fma(load(more), scale.left, sum.left),
                       fma(load(more + kWidth), scale.right, sum.right)};
                if constexpr (Format::kHasMinimum) {
                    const Vec total = set1(totals[row]);
                    sum = {fma(total, minimum.left, sum.left),
                           fma(total, minimum.right, sum.right)};
                }
            }
        }
    }

    const Call& call_;
    int rows_;
    Bf16* elements_;
    float* totals_;
};

}  // namespace
}  // namespace baton

#endif
