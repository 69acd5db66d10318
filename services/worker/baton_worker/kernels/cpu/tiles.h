// Products on the tiles of AMX (Intel's Software Developer's Manual, volume 1, chapter 18): one
// instruction takes sixteen rows of x times sixteen columns for 32 values of k.
//
// Every number of rows takes this path, also one: the instruction sums in an order of its own, and
// a row's bits must not depend on its company.
#pragma once

#if defined(__AMX_BF16__)

#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "product.h"

namespace baton {
namespace {

constexpr int kTileRows = 16;
constexpr int kStretch = 256;  // values of k whose weights are made ready for tiles at once
constexpr int kPairBytes = 2 * kVectorBytes;  // of a panel's weights, for two values of k
constexpr int kStretchBytes = kStretch / 2 * kPairBytes;
static_assert(kColumns == 2 * kTileRows && kStretch % kSegment == 0);

// The shapes of tiles, as the instruction that sets them reads them: sums 0 to 3, rows of x 4 and
// 5, weights 6 and 7. `depth` is the values of k in a tile.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    TileShapes(int rows_of_x, int depth) {
        for (int tile = 0; tile < 8; ++tile) {
            rows[tile] = static_cast<std::uint8_t>(tile < 6 ? rows_of_x : depth / 2);
            const bool of_x = tile == 4 || tile == 5;
            row_bytes[tile] = static_cast<std::uint16_t>(of_x ? 2 * depth : kVectorBytes);
        }
    }
};

// The tiles of this thread, until the end of the scope.
class Tiles {
  public:
    explicit Tiles(const TileShapes& shapes) { _tile_loadconfig(&shapes); }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// Sums of one tile of rows, or of two, for the two tiles of a panel's columns.
template <bool Two>
void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Two) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

// Sums of a block of rows: [row][column].
struct alignas(64) BlockSums {
    float values[2 * kTileRows][kColumns];

    template <bool Two>
    void load() const {
        // The compiler does not know that loading a tile reads memory.
        asm volatile("" ::: "memory");
        _tile_loadd(0, values[0], sizeof values[0]);
        _tile_loadd(1, values[0] + kWidth, sizeof values[0]);
        if constexpr (Two) {
            _tile_loadd(2, values[kTileRows], sizeof values[0]);
            _tile_loadd(3, values[kTileRows] + kWidth, sizeof values[0]);
        }
    }

    template <bool Two>
    void store() {
        _tile_stored(0, values[0], sizeof values[0]);
        _tile_stored(1, values[0] + kWidth, sizeof values[0]);
        if constexpr (Two) {
            _tile_stored(2, values[kTileRows], sizeof values[0]);
            _tile_stored(3, values[kTileRows] + kWidth, sizeof values[0]);
        }
    }

    Pair row(int number) const {
        return {baton::load(values[number]), baton::load(values[number] + kWidth)};
    }

    void set(int number, Pair sums) {
        baton::store(values[number], sums.left);
        baton::store(values[number] + kWidth, sums.right);
    }
};

// Add rows times weights. `x` holds tiles of rows one after the other, `size` elements each.
template <bool Two, int Depth>
void add_product(const std::uint8_t* weights, const Bf16* x, std::int64_t size) {
    constexpr int kRowBytes = 2 * Depth;
    // As in BlockSums::load.
    asm volatile("" ::: "memory");
    _tile_loadd(4, x, kRowBytes);
    _tile_loadd(6, weights, kPairBytes);
    if constexpr (Two) _tile_loadd(5, x + size, kRowBytes);
    _tile_loadd(7, weights + kVectorBytes, kPairBytes);
    // One after the other with the same weights.
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (Two) _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (Two) _tile_dpbf16ps(3, 5, 7);
}

// ---- Weights as tiles read them: [k / 2][column][2]

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

    // Who multiplies them reads them, and asks.
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

// Asks for bytes step by step, into the second cache.
class Ahead {
  public:
    Ahead(const std::uint8_t* from, std::int64_t bytes, std::int64_t steps)
        : at_(from), bytes_((bytes + steps * kLine - 1) / (steps * kLine) * kLine) {}

    void ask() {
        prefetch_later(at_, bytes_);
        at_ += bytes_;
    }

  private:
    static constexpr int kLine = 64;
    const std::uint8_t* at_;
    const std::int64_t bytes_;
};

// ---- The product

template <class Format>
class OneRow;

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
        const TileShapes shapes(slab.tile_rows(), kDepth);
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

// ---- One row of a quantised weight

// A tile of one row costs as much as one of sixteen, and its sums pass through memory to be scaled.
// Vectors are faster: they sum in the order of tiles, values of even k and of odd k apart.
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
    // of x are zero or larger than this, codes being whole numbers, there is nothing so small.
    bool is_right() const {
        constexpr float kLeast = 0x1p-100f;
        const auto is_large = [](float x) { return x == 0 || !(std::abs(x) < kLeast); };
        return std::all_of(x_, x_ + call_.weight.depth, is_large);
    }

    void run() const {
        share(call_.worth_threads(1), call_.panels(), [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t panel = from; panel < to; ++panel) add_up(panel);
        });
    }

  private:
    static constexpr int kDepth = Ready<Format>::kDepth;
    static constexpr std::int64_t kFar = 1 << 12;  // bytes that are asked for ahead

    void add_up(std::int64_t panel) const {
        const std::uint8_t* chunk = Ready<Format>::chunk_of(call_.weight, panel, 0);
        const std::int64_t groups = call_.weight.depth / kDepth;
        Pair sums{zero(), zero()};
        for (std::int64_t i = 0; i < groups; chunk += Format::kBytes) {
            prefetch(chunk + kFar, Format::kBytes);
            for (int group = 0; group < Format::kGroups; ++group, ++i) {
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

// ---- Whether they can be used

// Ask the system for this process's leave to use tiles, which Linux gives since 5.16.
inline bool permitted() {
    constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// Multiply small whole numbers, whose sums are exact.
inline bool tiles_are_right() {
    constexpr int kDepth = 2 * kTileRows;
    alignas(64) Bf16 x[2 * kTileRows][kDepth], weights[kTileRows][kColumns][2];
    const auto bf16 = [](int n) {
        const float value = static_cast<float>(n);
        std::uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return static_cast<Bf16>(bits >> 16);
    };
    const auto left = [](int row, int k) { return (row + 3 * k) % 7 - 3; };
    const auto right = [](int k, int column) { return (2 * k + 5 * column) % 9 - 4; };
    for (int k = 0; k < kDepth; ++k) {
        for (int row = 0; row < 2 * kTileRows; ++row) x[row][k] = bf16(left(row, k));
        for (int n = 0; n < kColumns; ++n) weights[k / 2][n][k % 2] = bf16(right(k, n));
    }
    BlockSums sums;
    const TileShapes shapes(kTileRows, kDepth);
    const Tiles tiles(shapes);
    clear_sums<true>();
    const auto* some = reinterpret_cast<const std::uint8_t*>(weights);
    add_product<true, kDepth>(some, x[0], kTileRows * kDepth);
    sums.store<true>();
    for (int row = 0; row < 2 * kTileRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
            int expected = 0;
            for (int k = 0; k < kDepth; ++k) expected += left(row, k) * right(k, column);
            if (sums.values[row][column] != static_cast<float>(expected)) return false;
        }
    }
    return true;
}

}  // namespace
}  // namespace baton

#endif
