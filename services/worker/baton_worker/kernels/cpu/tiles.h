// Products on the tiles of AMX (Intel's Software Developer's Manual, volume 1, chapter 18): one
// instruction takes sixteen rows of x times sixteen columns for 32 values of k.
//
// Every number of rows takes this path, also one: the instruction sums in an order of its own, and
// a row's bits must not depend on its company.
#pragma once

#if defined(__AMX_BF16__)

#include <sys/syscall.h>
#include <unistd.h>

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

// Add rows times weights. `x` holds tiles of rows one after the other, `size` elements each.
template <bool Two, int Depth>
void add_product(const std::uint8_t* weights, const Bf16* x, std::int64_t size) {
    constexpr int kRowBytes = 2 * Depth;
    // The compiler does not know that loading a tile reads memory.
    asm volatile("" ::: "memory");
    _tile_loadd(6, weights, kPairBytes);
    _tile_loadd(7, weights + kVectorBytes, kPairBytes);
    _tile_loadd(4, x, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (Two) {
        _tile_loadd(5, x + size, kRowBytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// Sums of a block of rows: [row][column].
struct alignas(64) BlockSums {
    float values[2 * kTileRows][kColumns];

    template <bool Two>
    void store() {
        _tile_stored(0, values[0], sizeof values[0]);
        _tile_stored(1, values[0] + kWidth, sizeof values[0]);
        if constexpr (Two) {
            _tile_stored(2, values[kTileRows], sizeof values[0]);
            _tile_stored(3, values[kTileRows] + kWidth, sizeof values[0]);
        }
    }

    Pair row(int number) const { return {load(values[number]), load(values[number] + kWidth)}; }

    void set(int number, Pair sums) {
        baton::store(values[number], sums.left);
        baton::store(values[number] + kWidth, sums.right);
    }
};

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

    static const std::uint8_t* weights(const Weight& weight, std::int64_t panel, std::int64_t first,
                                       std::uint8_t* to, int ahead) {
        const std::uint8_t* chunk = chunk_of(weight, panel, first);
        const std::int64_t values = std::min<std::int64_t>(kStretch, weight.depth - first);
        std::uint8_t* at = to;
        for (std::int64_t k = 0; k < values; k += Format::kChunk, chunk += Format::kBytes) {
            prefetch(chunk + ahead, Format::kBytes);
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
        const std::int64_t chunks = weight.depth / Format::kChunk;
        return weight.panels + (panel * chunks + first / Format::kChunk) * Format::kBytes;
    }
};

// Lies in memory as it is read. Only an odd end is copied.
template <>
struct Ready<Bfloat16> {
    static constexpr int kDepth = 2 * kTileRows;

    static const std::uint8_t* weights(const Weight& weight, std::int64_t panel, std::int64_t first,
                                       std::uint8_t* to, int ahead) {
        const std::int64_t chunks = (weight.depth + Bfloat16::kChunk - 1) / Bfloat16::kChunk;
        const std::uint8_t* from = weight.panels + (panel * chunks + first / 2) * kPairBytes;
        const std::int64_t values = std::min<std::int64_t>(kStretch, 2 * chunks - first);
        prefetch(from + ahead, static_cast<int>(values / 2 * kPairBytes));
        if (values % kDepth == 0) return from;
        std::memcpy(to, from, values / 2 * kPairBytes);
        fill_up<kDepth>(to, values);
        return to;
    }
};

template <>
struct Ready<Compact> {
    static constexpr int kDepth = 2 * kTileRows;

    static const std::uint8_t* weights(const Weight& weight, std::int64_t panel, std::int64_t first,
                                       std::uint8_t* to, int ahead) {
        const CompactPanels panels = weight.compact();
        const std::int64_t end = std::min(segments_of(weight.depth), (first + kStretch) / kSegment);
        std::uint8_t* at = to;
        for (std::int64_t segment = first / kSegment; segment < end; ++segment) {
            panels.prefetch_others(panel, segment);
            panels.expand(panel, segment, at, ahead);
            at += kSegmentBytes;
        }
        const std::int64_t values = std::min(kStretch + 0l, units_of(weight.depth) * kUnit - first);
        fill_up<kDepth>(to, values);
        return to;
    }
};

// ---- The product

template <class Format>
class TileProduct {
  public:
    explicit TileProduct(const Call& call) : call_(call) {}

    void run(std::int64_t rows) const {
        for (std::int64_t first = 0; first < rows; first += kSlab) {
            slab(first, std::min(kSlab, rows - first));
        }
    }

  private:
    static constexpr int kDepth = Ready<Format>::kDepth;
    static constexpr std::int64_t kBlock = 2 * kTileRows;
    static constexpr std::int64_t kSlab = 16 * kBlock;  // rows whose elements stay in cache
    static constexpr int kAheadOfTiles = 4096;

    // Rows of x of a block: [step][row][kDepth], and the totals of its groups, [group][row].
    struct Rows {
        Bf16* elements;
        float* totals;
        std::int64_t size;  // elements of a tile
        int count;

        bool two() const { return count > kTileRows; }
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

    void some_blocks(const Slab& slab, std::int64_t panel, std::int64_t begin,
                     std::int64_t end) const {
        Panel weights(call_.weight, panel, end - begin > 1);
        for (std::int64_t number = begin; number < end; ++number) {
            const Rows rows = block_of(slab, number);
            BlockSums sums;
            if (rows.two()) {
                add_up<true>(sums, weights, rows);
            } else {
                add_up<false>(sums, weights, rows);
            }
            const float* first = sums.values[0];
            const std::int64_t row = slab.first + number * kBlock;
            finish<Bf16>(call_, panel, {first, first + kWidth, kColumns, row, rows.count});
            weights.is_ready = true;
        }
    }

    // A panel's weights. Those that have to be made ready are kept if more than one block wants
    // them.
    struct Panel {
        const Weight& weight;
        const std::int64_t number;
        const bool keeps;
        bool is_ready = false;
        std::uint8_t* memory;
        alignas(64) std::uint8_t passing[kStretchBytes];

        Panel(const Weight& w, std::int64_t panel, bool several)
            : weight(w), number(panel), keeps(several && !std::is_same_v<Format, Bfloat16>) {
            const std::int64_t stretches = (w.depth + kStretch - 1) / kStretch;
            memory = keeps ? workspace<kPanel>(stretches * kStretchBytes) : passing;
        }

        const std::uint8_t* stretch(std::int64_t first) {
            if (!keeps) return Ready<Format>::weights(weight, number, first, memory, kAheadOfTiles);
            std::uint8_t* to = memory + first / kStretch * kStretchBytes;
            if (is_ready) return to;
            return Ready<Format>::weights(weight, number, first, to, kAheadOfTiles);
        }
    };

    template <bool Two>
    void add_up(BlockSums& sums, Panel& weights, const Rows& rows) const {
        if constexpr (Format::kScaled) {
            add_groups<Two>(sums, weights, rows);
        } else {
            add_all<Two>(sums, weights, rows);
        }
    }

    template <bool Two>
    void add_all(BlockSums& sums, Panel& weights, const Rows& rows) const {
        const Bf16* x = rows.elements;
        clear_sums<Two>();
        for (std::int64_t first = 0; first < call_.weight.depth; first += kStretch) {
            const std::uint8_t* some = weights.stretch(first);
            const std::int64_t end = std::min<std::int64_t>(first + kStretch, call_.weight.depth);
            for (std::int64_t k = first; k < end; k += kDepth) {
                add_product<Two, kDepth>(some, x, rows.size);
                some += kDepth / 2 * kPairBytes;
                x += (Two ? 2 : 1) * rows.size;
            }
        }
        sums.store<Two>();
    }

    // A group's sum is one of codes, scaled as it is added.
    template <bool Two>
    void add_groups(BlockSums& sums, Panel& weights, const Rows& rows) const {
        const Bf16* x = rows.elements;
        const float* totals = rows.totals;
        std::memset(&sums, 0, sizeof sums);
        for (std::int64_t first = 0; first < call_.weight.depth; first += kStretch) {
            const std::uint8_t* some = weights.stretch(first);
            const std::uint8_t* chunk =
                Ready<Format>::chunk_of(call_.weight, weights.number, first);
            const std::int64_t end = std::min<std::int64_t>(first + kStretch, call_.weight.depth);
            for (std::int64_t k = first; k < end; k += Format::kChunk, chunk += Format::kBytes) {
                for (int group = 0; group < Format::kGroups; ++group) {
                    BlockSums part;
                    clear_sums<Two>();
                    add_product<Two, kDepth>(some, x, rows.size);
                    part.store<Two>();
                    scale(sums, part, chunk, group, totals, rows.count);
                    some += kDepth / 2 * kPairBytes;
                    x += (Two ? 2 : 1) * rows.size;
                    totals += rows.count;
                }
            }
        }
    }

    static void scale(BlockSums& sums, const BlockSums& part, const std::uint8_t* chunk, int group,
                      const float* totals, int rows) {
        const Pair scales = Format::scale(chunk, group);
        for (int row = 0; row < rows; ++row) {
            const Pair old = sums.row(row), more = part.row(row);
            sums.set(row, {fma(more.left, scales.left, old.left),
                           fma(more.right, scales.right, old.right)});
        }
        if constexpr (Format::kHasMinimum) {
            const Pair minima = Format::minimum(chunk, group);
            for (int row = 0; row < rows; ++row) {
                const Pair old = sums.row(row);
                const Vec total = set1(totals[row]);
                sums.set(row, {fma(total, minima.left, old.left),
                               fma(total, minima.right, old.right)});
            }
        }
    }

    const Call& call_;
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
