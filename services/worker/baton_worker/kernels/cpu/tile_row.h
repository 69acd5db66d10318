// One row times a quantised weight, to the bits of tiles.
//
// A tile of one row costs as much as one of sixteen, and its sums pass through memory to be scaled.
// Vectors are faster: they sum in the order of tiles, values of even k and of odd k apart.
#pragma once

#if defined(__AMX_BF16__)

#include <algorithm>
#include <cmath>

#include "tile_weights.h"

namespace baton {
namespace {

template <class Format>
class OneRow {
  public:
    explicit OneRow(const Call& call) : call_(call) {
        const std::int64_t depth = call.weight.depth;
        x_ = reinterpret_cast<float*>(workspace<kRows>(2 * depth * sizeof(float)));
        totals_ = x_ + depth;
        const auto* x = static_cast<const Bf16*>(call.x);
        for (std::int64_t k = 0; k < depth; k += kWidth) store(x_ + k, load(x + k));
        if constexpr (Format::kHasMinimum) {
            add_groups_up<kDepth>(x, call.stride, 1, depth / kDepth, totals_);
        }
    }

    // A tile takes what is too small for a whole mantissa for zero, at every step. Where all values
    // of x are zero or larger than this, codes being multiples of 2^-17, there is nothing so small.
    bool is_right() const {
        constexpr float kLeast = 0x1p-100f;
        // Without a branch: whole vectors at a time.
        const auto is_small = [](float x) { return (x != 0) & (std::abs(x) < kLeast); };
        return std::count_if(x_, x_ + call_.weight.depth, is_small) == 0;
    }

    void run() const {
        share(call_.worth_threads(1), call_.panels(), [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t panel = from; panel < to; ++panel) add_up(panel);
        });
    }

  private:
    static constexpr int kDepth = Ready<Format>::kDepth;
    static constexpr int kGroupBytes = Format::kBytes / Format::kGroups;
    static constexpr std::int64_t kFar = 1 << 12;  // bytes that are asked for ahead

    void add_up(std::int64_t panel) const {
        const std::uint8_t* chunk = Ready<Format>::chunk_of(call_.weight, panel, 0);
        const std::int64_t groups = call_.weight.depth / kDepth;
        Pair sums{zero(), zero()};
        for (std::int64_t i = 0; i < groups; chunk += Format::kBytes) {
            for (int group = 0; group < Format::kGroups; ++group, ++i) {
                // Group by group: the lines of a chunk would fill the core's buffers of misses.
                prefetch(chunk + kFar + group * kGroupBytes, kGroupBytes);
                const Pair scale = Format::scale(chunk, group);
                sums = fma(sum_of(chunk, group, x_ + i * kDepth), scale, sums);
                if constexpr (Format::kHasMinimum) {
                    const Vec total = set1(totals_[i]);
                    sums = fma({total, total}, Format::minimum(chunk, group), sums);
                }
            }
        }
        alignas(64) float finished[kColumns];
        store(finished, sums.left);
        store(finished + kWidth, sums.right);
        finish<Bf16>(call_, panel, {finished, finished + kWidth, kColumns, 0, 1});
    }

    static Pair sum_of(const std::uint8_t* chunk, int group, const float* x) {
        Pair sums[2] = {{zero(), zero()}, {zero(), zero()}};  // of even k, of odd k
        const auto add_step = [&](int k, Vec left, Vec right) {
            const Vec value = set1(x[k]);
            sums[k % 2] = fma({value, value}, {left, right}, sums[k % 2]);
        };
        Format::template unpack<FloatArithmetic>(chunk, group, add_step);
        return {add(sums[0].left, sums[1].left), add(sums[0].right, sums[1].right)};
    }

    static Pair fma(Pair a, Pair b, Pair c) {
        return {baton::fma(a.left, b.left, c.left), baton::fma(a.right, b.right, c.right)};
    }

    const Call& call_;
    float* x_;
    float* totals_;
};

}  // namespace
}  // namespace baton

#endif
