// Products on tiles.
//
// Every number of rows takes this path, or one to the same bits: the instruction sums in an order
// of its own, and a row's bits must not depend on its company.
#pragma once

#if defined(__AMX_BF16__)

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tile_few.h"
#include "tile_row.h"

namespace baton {
namespace {

template <class Format>
class TileProduct {
  public:
    explicit TileProduct(const Call& call) : call_(call) {}

    void run(std::int64_t rows) const {
        if constexpr (Format::kScaled) {
            if (rows == 1) {
                const OneRow<Format> alone(call_);
                if (alone.is_right()) return alone.run();
            }
            if (rows <= FewRows<Format>::kMost) {
                return FewRows<Format>(call_, static_cast<int>(rows)).run();
            }
        }
        const std::int64_t block_bytes = kBlock * steps() * kDepth * sizeof(Bf16);
        const std::int64_t most = std::max<std::int64_t>(1, kSlabBytes / block_bytes) * kBlock;
        for (std::int64_t first = 0; first < rows; first += most) {
            slab(first, std::min(most, rows - first));
        }
    }

  private:
    static constexpr int kDepth = Ready<Format>::kDepth;
    static constexpr std::int64_t kBlock = 2 * kTileRows;
    static constexpr std::int64_t kSlabBytes = 1 << 20;  // of rows that stay in the second cache
    static constexpr std::int64_t kFar = 1 << 15;        // bytes that one block asks ahead
    // A stretch for one block: the shorter, the sooner tiles follow the weights made ready.
    static constexpr std::int64_t kShort = std::max<std::int64_t>(kSegment, Format::kChunk);

    // Rows of x of a block: [step][row][kDepth], and the totals of its groups, [group][row].
    struct Rows {
        Bf16* elements;
        float* totals;
        std::int64_t size;  // elements of a tile
        int count;

        bool two() const { return count > kTileRows; }

        // From a value of k on.
        template <bool Two>
        const Bf16* at(std::int64_t k) const {
            return elements + k / kDepth * (Two ? 2 : 1) * size;
        }
    };

    // How a slab is laid out.
    struct Slab {
        std::int64_t first, rows;
        Bf16* elements;
        float* totals;

        std::int64_t blocks() const { return (rows + kBlock - 1) / kBlock; }
        int tile_rows() const { return static_cast<int>(std::min<std::int64_t>(kTileRows, rows)); }
    };

    std::int64_t steps() const { return (call_.weight.depth + kDepth - 1) / kDepth; }

    Rows block_of(const Slab& slab, std::int64_t number) const {
        const std::int64_t begin = number * kBlock;
        return {slab.elements + begin * steps() * kDepth, slab.totals + begin * steps(),
                slab.tile_rows() * std::int64_t{kDepth},
                static_cast<int>(std::min(kBlock, slab.rows - begin))};
    }

    void slab(std::int64_t first, std::int64_t rows) const {
        Slab slab{first, rows, nullptr, nullptr};
        const std::int64_t padded = rows < kTileRows ? rows : slab.blocks() * kBlock;
        const std::size_t element_bytes = padded * steps() * kDepth * sizeof(Bf16);
        const std::size_t total_bytes = Format::kHasMinimum ? rows * steps() * sizeof(float) : 0;
        std::uint8_t* memory = workspace<kRows>(element_bytes + total_bytes);
        slab.elements = reinterpret_cast<Bf16*>(memory);
        slab.totals = reinterpret_cast<float*>(memory + element_bytes);
        share(call_.worth_threads(rows), slab.blocks(), [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t number = from; number < to; ++number) {
                const Rows block = block_of(slab, number);
                const std::int64_t row = first + number * kBlock;
                pack(row, block);
                if constexpr (Format::kHasMinimum) {
                    const Bf16* x = row_of_x(row);
                    add_groups_up<kDepth>(x, call_.stride, block.count, steps(), block.totals);
                }
            }
        });
        multiply(slab);
    }

    const Bf16* row_of_x(std::int64_t row) const {
        return static_cast<const Bf16*>(call_.x) + row * call_.stride;
    }

    // Past the end of k and of the rows there are zeros.
    void pack(std::int64_t first, const Rows& block) const {
        const std::int64_t depth = call_.weight.depth, rows = block.size / kDepth;
        const std::int64_t padded = block.two() ? 2 * rows : rows;
        for (std::int64_t row = 0; row < padded; ++row) {
            const Bf16* from = row_of_x(first + row);
            const std::int64_t values = row < block.count ? depth : 0;
            Bf16* to = block.elements + row * kDepth;
            for (std::int64_t k = 0; k < depth; k += kDepth, to += padded * kDepth) {
                if (values - k >= kDepth) {
                    std::memcpy(to, from + k, kDepth * sizeof(Bf16));
                    continue;
                }
                const std::int64_t some = std::clamp<std::int64_t>(values - k, 0, kDepth);
                std::copy_n(from + k, some, to);
                std::fill(to + some, to + kDepth, Bf16{0});
            }
        }
    }

    // Panel by panel, and by blocks too where panels are fewer than threads.
    void multiply(const Slab& slab) const {
        const std::int64_t panels = call_.panels(), blocks = slab.blocks();
        const std::int64_t parts = call_.parts(blocks);
        const ProductShapes shapes(slab.tile_rows(), kDepth);
        const bool worth = call_.worth_threads(slab.rows);
        share(worth, panels * parts, [&](std::int64_t from, std::int64_t to) {
            const Tiles tiles(shapes);
            for (std::int64_t i = from; i < to; ++i) {
                const std::int64_t part = i % parts;
                some_blocks(slab, i / parts, blocks * part / parts, blocks * (part + 1) / parts);
            }
        });
    }

    // Stretch by stretch, so that a stretch's weights stay in the first cache while the rows pass.
    void some_blocks(const Slab& slab, std::int64_t panel, std::int64_t begin,
                     std::int64_t end) const {
        const std::int64_t count = end - begin, depth = call_.weight.depth;
        auto* sums = reinterpret_cast<BlockSums*>(workspace<kSums>(count * sizeof(BlockSums)));
        alignas(64) std::uint8_t passing[kStretchBytes];
        Ahead ahead = ahead_of(panel, count);
        const auto ask = [count](const std::uint8_t* read, std::int64_t bytes) {
            if (count == 1) prefetch_later(read + kFar, bytes);
        };
        const std::int64_t length = count > 1 ? kStretch : kShort;
        for (std::int64_t first = 0; first < depth; first += length) {
            const std::int64_t last = std::min(first + length, depth);
            const auto* weights =
                Ready<Format>::weights(call_.weight, panel, first, last, passing, ask);
            const Stretch stretch{panel, first, last, count > 1, weights};
            for (std::int64_t i = 0; i < count; ++i) {
                const Rows rows = block_of(slab, begin + i);
                const std::int64_t row = slab.first + (begin + i) * kBlock;
                if (last == depth) ask_for_results(panel, row, rows.count);
                rows.two() ? add_up<true>(sums[i], stretch, rows, ahead)
                           : add_up<false>(sums[i], stretch, rows, ahead);
                if (last < depth) continue;
                const float* left = sums[i].values[0];
                finish<Bf16>(call_, panel, {left, left + kWidth, kColumns, row, rows.count});
            }
        }
    }

    // Values of k from `first` to `end` of a panel.
    struct Stretch {
        std::int64_t panel, first, end;
        bool passes;  // sums pass through memory between stretches: there are several blocks
        const std::uint8_t* weights;
    };

    // While several blocks pass, the whole next panel is asked for. While one does, what is read
    // says what will be: where weights are made ready, or here if they lie as they are read.
    Ahead ahead_of(std::int64_t panel, std::int64_t blocks) const {
        const std::int64_t bytes = Ready<Format>::panel_bytes(call_.weight);
        const std::uint8_t* begin = call_.weight.panels + panel * bytes;
        if (blocks > 1) return {begin + bytes, bytes, blocks * steps()};
        return {begin + kFar, std::is_same_v<Format, Bfloat16> ? bytes : 0, steps()};
    }

    // Rows that will be read and written when the sums are finished.
    void ask_for_results(std::int64_t panel, std::int64_t row, int count) const {
        const Weight& w = call_.weight;
        const std::int64_t size = w.output_is_float ? sizeof(float) : sizeof(Bf16);
        const std::int64_t column = panel * call_.panel_columns();
        for (int m = 0; m < count; ++m) {
            const std::int64_t at = (row + m) * w.stride + column;
            prefetch_to_write(static_cast<std::uint8_t*>(call_.out) + at * size);
            if (call_.residual != nullptr) {
                prefetch(static_cast<const std::uint8_t*>(call_.residual) + at * sizeof(Bf16), 1);
            }
        }
    }

    template <bool Two>
    void add_up(BlockSums& sums, const Stretch& stretch, const Rows& rows, Ahead& ahead) const {
        if constexpr (Format::kScaled) {
            add_groups<Two>(sums, stretch, rows, ahead);
        } else {
            add_all<Two>(sums, stretch, rows, ahead);
        }
    }

    template <bool Two>
    void add_all(BlockSums& sums, const Stretch& stretch, const Rows& rows, Ahead& ahead) const {
        const Bf16* x = rows.at<Two>(stretch.first);
        const std::uint8_t* weights = stretch.weights;
        if (stretch.first == 0) {
            clear_sums<Two>();
        } else if (stretch.passes) {
            sums.load<Two>();
        }
        for (std::int64_t k = stretch.first; k < stretch.end; k += kDepth) {
            ahead.ask();
            add_product<Two, kDepth>(weights, x, rows.size);
            weights += kDepth / 2 * kPairBytes;
            x += (Two ? 2 : 1) * rows.size;
        }
        if (stretch.passes || stretch.end == call_.weight.depth) sums.store<Two>();
    }

    // A group's sum is one of codes, scaled as it is added: while the next one is multiplied.
    template <bool Two>
    void add_groups(BlockSums& sums, const Stretch& stretch, const Rows& rows, Ahead& ahead) const {
        const Bf16* x = rows.at<Two>(stretch.first);
        const float* totals = rows.totals + stretch.first / kDepth * rows.count;
        const std::uint8_t* chunk =
            Ready<Format>::chunk_of(call_.weight, stretch.panel, stretch.first);
        const std::int64_t groups = (stretch.end - stretch.first) / kDepth;
        BlockSums part;
        const auto scale = [&](std::int64_t i) {
            const std::uint8_t* of = chunk + i / Format::kGroups * Format::kBytes;
            add_scaled(sums, part, of, i % Format::kGroups, totals + i * rows.count, rows.count);
        };
        if (stretch.first == 0) std::memset(&sums, 0, sizeof sums);
        for (std::int64_t i = 0; i < groups; ++i) {
            ahead.ask();
            clear_sums<Two>();
            const std::uint8_t* weights = stretch.weights + i * (kDepth / 2 * kPairBytes);
            add_product<Two, kDepth>(weights, x + i * (Two ? 2 : 1) * rows.size, rows.size);
            if (i > 0) scale(i - 1);
            part.store<Two>();
        }
        scale(groups - 1);
    }

    static void add_scaled(BlockSums& sums, const BlockSums& part, const std::uint8_t* chunk,
                           int group, const float* totals, int rows) {
        const Pair scales = Format::scale(chunk, group);
        Pair minima{};
        if constexpr (Format::kHasMinimum) minima = Format::minimum(chunk, group);
        for (int row = 0; row < rows; ++row) {
            const Pair old = sums.row(row), more = part.row(row);
            Pair all{fma(more.left, scales.left, old.left),
                     fma(more.right, scales.right, old.right)};
            if constexpr (Format::kHasMinimum) {
                const Vec total = set1(totals[row]);
                all = {fma(total, minima.left, all.left), fma(total, minima.right, all.right)};
            }
            sums.set(row, all);
        }
    }

    const Call& call_;
};

}  // namespace
}  // namespace baton

#endif
