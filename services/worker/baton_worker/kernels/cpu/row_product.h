// The product of packed weights: y = x W^T (+ bias) (+ residual), or activation(gate) * up.
//
// Work is cut into panels of columns and blocks of rows; each output is summed by one thread over the
// whole of k in order. Blocking never splits k, so a row's result does not depend on how many rows or
// threads share the product.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "compacting.h"
#include "product.h"
#include "tile_product.h"
#include "integer_product.h"

namespace baton {
namespace {

// ---- The product

template <class Format>
constexpr bool kIsCompact = std::is_same_v<Format, Compact>;
// Whether floats come as fast as memory gives them: those of few rows do.
template <class Format, int M>
constexpr bool kWaits = M <= (kIsCompact<Format> ? 1 : 4);

// Asks for floats past the reach of the core's own prefetcher. Where arithmetic takes longer than memory
// they are asked for earlier, and leave the first cache to the elements of the rows.
template <class Format, int M>
[[gnu::always_inline]] inline void ask_ahead(const std::uint8_t* weights, std::int64_t bytes) {
    if constexpr (kWaits<Format, M>) {
        prefetch(weights + 4096, bytes);
    } else {
        prefetch_later(weights + 16384, bytes);
    }
}

// Sums of M rows, for two vectors of columns.
template <int M>
struct Sums {
    Vec left[M], right[M];

    Sums() {
        for (int m = 0; m < M; ++m) left[m] = right[m] = zero();
    }

    // Adds one step of two vectors of weights.
    template <class Arithmetic>
    auto adder(const typename Arithmetic::Element* x) {
        return [this, x](int step, auto a, auto b) {
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) {
                left[m] = Arithmetic::accumulate(left[m], a, x[step * M + m]);
                right[m] = Arithmetic::accumulate(right[m], b, x[step * M + m]);
            }
        };
    }

    void add_scaled(const Sums& group, Pair scale) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            left[m] = fma(group.left[m], scale.left, left[m]);
            right[m] = fma(group.right[m], scale.right, right[m]);
        }
    }

    // The same, and `x` times a minimum.
    void add_scaled(const Sums& group, Pair scale, const float* x, Pair minimum) {
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const Vec total = set1(x[m]);
            left[m] = fma(total, minimum.left, fma(group.left[m], scale.left, left[m]));
            right[m] = fma(total, minimum.right, fma(group.right[m], scale.right, right[m]));
        }
    }
};

// Whether a block of M rows may be one of several: they are nearly of one size.
template <int M>
constexpr bool kIsOneOfSeveral = M > 1;

// Add rows times columns of some chunks of a panel. `x` holds the elements of the M rows step by
// step, `totals` the sum of each row's activations group by group, if the format has minima. On the
// way it asks for what is to be read `ahead`.
template <class Format, class Arithmetic, int M>
[[gnu::flatten]] void accumulate(Sums<M>& sums, const std::uint8_t* chunk, const typename Arithmetic::Element* x,
                const float* totals, std::int64_t chunks, Ahead& ahead) {
    constexpr int kSteps = Format::kChunk / Format::kGroups / Arithmetic::kStep;
    // In registers where these suffice: what is written on the way might be where `sums` is, for all
    // that the compiler knows.
    std::conditional_t<Format::kScaled, Sums<M>&, Sums<M>> mine = sums;
    for (std::int64_t i = 0; i < chunks; ++i, chunk += Format::kBytes) {
        // Expanded weights are near.
        constexpr bool kIsFar = !Format::kScaled && !kIsCompact<Format>;
        if constexpr (kIsFar) ask_ahead<Format, M>(chunk, Format::kBytes);
        if constexpr (kIsOneOfSeveral<M>) ahead.ask();
        for (int group = 0; group < Format::kGroups; ++group, x += kSteps * M) {
            if constexpr (Format::kScaled) {
                Sums<M> part;
                unpack_and_ask<Format, Arithmetic>(chunk, group,
                                                   part.template adder<Arithmetic>(x));
                const Pair scale = Format::scale(chunk, group);
                if constexpr (Format::kHasMinimum) {
                    mine.add_scaled(part, scale, totals, Format::minimum(chunk, group));
                    totals += M;
                } else {
                    mine.add_scaled(part, scale);
                }
            } else {
                Format::template unpack<Arithmetic>(chunk, group,
                                                    mine.template adder<Arithmetic>(x));
            }
        }
    }
    if constexpr (!Format::kScaled) sums = mine;
}

// The same for a whole segment of a compact panel. If `Keep`, what has been expanded goes to `kept`.
template <class Arithmetic, bool Keep, int M>
void accumulate(Sums<M>& sums, const std::uint8_t* unit, Words bases, Patches patches,
                const typename Arithmetic::Element* x, std::uint8_t* kept) {
    // In registers: `kept` might be where `sums` is, for all that the compiler knows.
    Sums<M> mine = sums;
    const auto add = [&](int half, IntVec left, IntVec right) {
        patches.apply(half, left, right);
        if constexpr (Keep) {
            store_bytes(kept, left);
            store_bytes(kept + kVectorBytes, right);
            kept += 2 * kVectorBytes;
        }
        Compact::steps<Arithmetic>(left, right, mine.template adder<Arithmetic>(x));
        x += Compact::kChunk / Arithmetic::kStep * M;
    };
    for (int i = 0; i < kSegmentUnits; ++i, unit += kUnitBytes) {
        ask_ahead<Compact, M>(unit, kUnitBytes);
        add(2 * i, expand_vector<0>(unit, bases.left), expand_vector<1>(unit, bases.right));
        add(2 * i + 1, expand_vector<2>(unit, bases.left), expand_vector<3>(unit, bases.right));
    }
    sums = mine;
}

// The same for a whole compact panel. A segment that is not whole passes through memory.
template <class Arithmetic, bool Keep, int M>
void accumulate(Sums<M>& sums, const CompactPanels& weight, std::int64_t panel,
                const typename Arithmetic::Element* x, std::uint8_t* kept) {
    constexpr std::int64_t kChunks = kSegment / Compact::kChunk;
    constexpr int kSteps = kSegment / Arithmetic::kStep;
    alignas(64) std::uint8_t passing[kSegmentBytes];
    std::int64_t left = (weight.depth + Compact::kChunk - 1) / Compact::kChunk;
    for (std::int64_t segment = 0; left > 0; ++segment, left -= kChunks, x += kSteps * M) {
        std::uint8_t* expanded = Keep ? kept + segment * kSegmentBytes : passing;
        weight.prefetch_others(panel, segment);
        if (left >= kChunks) {
            accumulate<Arithmetic, Keep>(sums, weight.segment(panel, segment),
                                         weight.bases_of(panel), weight.patches(panel, segment), x,
                                         expanded);
            continue;
        }
        const auto ask = [](const std::uint8_t* unit) { ask_ahead<Compact, M>(unit, kUnitBytes); };
        weight.expand(panel, segment, expanded, ask);
        Ahead none;
        accumulate<Compact, Arithmetic, M>(sums, expanded, x, nullptr, std::min(kChunks, left),
                                           none);
    }
}

template <class Format, class Arithmetic, class T>
class Product {
  public:
    using Element = typename Arithmetic::Element;
    // What the vector registers hold, of 32 or 16: two sums per row, and weights. While a group is
    // summed the sums of those before wait in memory; codes and what they become take more registers
    // than floats, and pairs of floats that are taken apart more than single ones.
    static constexpr bool kIsApart = std::is_base_of_v<Bfloat16, Format> && Arithmetic::kStep == 1;
    static constexpr int kMaxRows = kWidth == 16        ? (Format::kScaled ? 9 : 12)
                                    : Format::kScaled   ? 4
                                    : kIsApart ? 5 : 6;
    static constexpr std::int64_t kSlab = 32 * kMaxRows;  // rows whose elements stay in cache

    explicit Product(const Call& call)
        : call_(call), chunks_((call.weight.depth + Format::kChunk - 1) / Format::kChunk) {}

    void run(std::int64_t rows) const {
        for (std::int64_t first = 0; first < rows; first += kSlab) {
            slab(first, std::min(kSlab, rows - first));
        }
    }

  private:
    static constexpr int kGroup = Format::kChunk / Format::kGroups;

    std::int64_t steps() const { return chunks_ * (Format::kChunk / Arithmetic::kStep); }
    std::int64_t groups() const { return chunks_ * Format::kGroups; }

    // Rows of x as a tile reads them: block by block, elements [step][row], totals [group][row].
    struct Rows {
        const Element* elements;
        const float* totals;
    };

    // In front of a block; between two of them there is room for a vector.
    std::int64_t elements_before(std::int64_t row, std::int64_t block) const {
        return row * steps() + block * kWidth;
    }

    void slab(std::int64_t first, std::int64_t rows) const {
        const T* x = static_cast<const T*>(call_.x) + first * call_.stride;
        const bool as_it_is = rows == 1 && sizeof(T) * Arithmetic::kStep == sizeof(Element) &&
                              steps() * Arithmetic::kStep == call_.weight.depth;
        const std::int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
        const std::size_t element_bytes =
            as_it_is ? 0 : elements_before(rows, blocks) * sizeof(Element);
        const std::size_t total_bytes = Format::kHasMinimum ? rows * groups() * sizeof(float) : 0;
        std::uint8_t* memory = workspace<kRows>(element_bytes + total_bytes);
        auto* elements = reinterpret_cast<Element*>(memory);
        auto* totals = reinterpret_cast<float*>(memory + element_bytes);
        const Rows ready{as_it_is ? reinterpret_cast<const Element*>(x) : elements, totals};
        if (!as_it_is || Format::kHasMinimum) {
            share(call_.worth_threads(rows), blocks, [&](std::int64_t from, std::int64_t to) {
                for (std::int64_t block = from; block < to; ++block) {
                    const std::int64_t begin = block * rows / blocks;
                    const std::int64_t end = (block + 1) * rows / blocks;
                    const T* some = x + begin * call_.stride;
                    if (!as_it_is) pack(some, end - begin, elements + elements_before(begin, block));
                    if constexpr (Format::kHasMinimum) {
                        float* sums = totals + begin * groups();
                        add_groups_up<kGroup>(some, call_.stride, end - begin, groups(), sums);
                    }
                }
            });
        }
        multiply(first, rows, blocks, ready);
    }

    // [m][k] to [step][m]; past the end of k there are zeros.
    void pack(const T* x, std::int64_t m, Element* to) const {
        const std::int64_t whole = call_.weight.depth / Arithmetic::kStep;
        const std::int64_t begun = pack_vectors(x, m, to, whole);
        for (std::int64_t row = 0; row < m; ++row) {
            const T* from = x + row * call_.stride;
            for (std::int64_t step = begun; step < whole; ++step) {
                to[step * m + row] = Arithmetic::element(from + step * Arithmetic::kStep);
            }
            if (whole < steps()) {
                T rest[Arithmetic::kStep] = {};
                std::copy(from + whole * Arithmetic::kStep, from + call_.weight.depth, rest);
                to[whole * m + row] = Arithmetic::element(rest);
            }
        }
    }

    // The same for as many steps as make whole vectors. Returns how many. A vector is longer than a
    // step: what it writes too much is written again by those that follow, or is never read.
    std::int64_t pack_vectors(const T* x, std::int64_t m, Element* to, std::int64_t whole) const {
        std::int64_t step = 0;
        for (; step + kWidth <= whole; step += kWidth) {
            IntVec rows[kWidth] = {};
            const T* from = x + step * Arithmetic::kStep;
#pragma GCC unroll 16
            for (int row = 0; row < kMaxRows; ++row) {
                if (row < m) rows[row] = Arithmetic::elements(from + row * call_.stride);
            }
            transpose(rows);
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) store_bytes(to + (step + i) * m, rows[i]);
        }
        return step;
    }

    // Panel by panel, and by blocks too where panels are fewer than threads.
    void multiply(std::int64_t first, std::int64_t rows, std::int64_t blocks, Rows x) const {
        const std::int64_t panels = call_.panels(), parts = call_.parts(blocks);
        share(call_.worth_threads(rows), panels * parts, [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t i = from; i < to; ++i) {
                const std::int64_t panel = i / parts, part = i % parts;
                Chunks chunks = chunks_of(panel, blocks);
                const bool goes_on = parts == 1 && i + 1 < to;
                const Ahead next = goes_on ? next_panel(panel, blocks) : Ahead{};
                for (std::int64_t b = blocks * part / parts; b < blocks * (part + 1) / parts; ++b) {
                    const std::int64_t begin = b * rows / blocks, end = (b + 1) * rows / blocks;
                    const Rows some{x.elements + elements_before(begin, b),
                                    x.totals + begin * groups()};
                    kTiles[end - begin - 1](*this, first + begin, panel, chunks, some);
                    if (chunks.kept != nullptr) chunks.ready = chunks.kept;
                    if (b == 0) chunks.ahead = next;
                }
            }
        });
    }

    // A panel in its format. Of a compact one nothing is `ready` for the first block, which expands
    // it on the way, and fills `kept` for the others if there are any.
    struct Chunks {
        const std::uint8_t* ready;
        std::uint8_t* kept;
        Ahead ahead = {};
    };

    // The first block of rows that meets a panel waits for memory, and those behind it have no need
    // of any: they ask for the next panel.
    Ahead next_panel(std::int64_t panel, std::int64_t blocks) const {
        if (blocks < 2) return {};
        const std::int64_t asks = (blocks - 1) * chunks_;
        if constexpr (kIsCompact<Format>) {
            const std::int64_t bytes = units_of(call_.weight.depth) * kUnitBytes;
            return {call_.weight.compact().panel(panel + 1), bytes, asks};
        } else {
            const std::int64_t bytes = chunks_ * Format::kBytes;
            return {call_.weight.panels + (panel + 1) * bytes, bytes, asks};
        }
    }

    Chunks chunks_of(std::int64_t panel, std::int64_t blocks) const {
        if constexpr (!kIsCompact<Format>) {
            return {call_.weight.panels + panel * chunks_ * Format::kBytes, nullptr};
        } else {
            if (blocks == 1) return {nullptr, nullptr};
            return {nullptr, workspace<kPanel>(segments_of(call_.weight.depth) * kSegmentBytes)};
        }
    }

    template <int M>
    static void block(const Product& self, std::int64_t row, std::int64_t panel,
                      Chunks& chunks, const Rows& x) {
        Sums<M> sums;
        if constexpr (kIsCompact<Format>) {
            if (chunks.ready == nullptr) {
                const CompactPanels weight = self.call_.weight.compact();
                if (chunks.kept == nullptr) {
                    accumulate<Arithmetic, false>(sums, weight, panel, x.elements, nullptr);
                } else {
                    accumulate<Arithmetic, true>(sums, weight, panel, x.elements, chunks.kept);
                }
                return self.finish_all(sums, row, panel);
            }
        }
        accumulate<Format, Arithmetic, M>(sums, chunks.ready, x.elements, x.totals, self.chunks_,
                                          chunks.ahead);
        self.finish_all(sums, row, panel);
    }

    template <int M>
    void finish_all(const Sums<M>& sums, std::int64_t row, std::int64_t panel) const {
        alignas(64) float left[M][kWidth], right[M][kWidth];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            store(left[m], sums.left[m]);
            store(right[m], sums.right[m]);
        }
        finish<T>(call_, panel, {left[0], right[0], kWidth, row, M});
    }

    using Tile = void (*)(const Product&, std::int64_t, std::int64_t, Chunks&, const Rows&);
    template <int... M>
    static constexpr std::array<Tile, kMaxRows> tiles(std::integer_sequence<int, M...>) {
        return {block<M + 1>...};
    }
    static constexpr std::array<Tile, kMaxRows> kTiles =
        tiles(std::make_integer_sequence<int, kMaxRows>());

    const Call& call_;
    const std::int64_t chunks_;
};

// ---- From numbers to types

template <class Format>
void run(const Call& call, std::int64_t rows) {
    if (call.weight.input_is_float) return Product<Format, FloatArithmetic, float>(call).run(rows);
#if defined(__AMX_BF16__)
    return TileProduct<Format>(call).run(rows);
#elif defined(__AVX512BF16__)
    return Product<Format, PairArithmetic, Bf16>(call).run(rows);
#else
#if !defined(__AVX512F__)
    if constexpr (kIntegerCodes<Format>) return IntegerProduct<Format>(call).run(rows);
#endif
    return Product<Format, FloatArithmetic, Bf16>(call).run(rows);
#endif
}

}  // namespace
}  // namespace baton
