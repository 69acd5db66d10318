// Products of quantised weights on integers, for CPUs that multiply no bfloat16 pairs.
//
// The values of a row of x in a group become integers of 16 bits that share a power of two, the
// smallest that fits the largest of them. bfloat16 has eight significant bits: a value that is up to
// 128 times smaller than the largest stays as it is, and others move by less than a 65,000th of
// the largest. Codes are integers too, so the sum of a group is exact, whatever its order. Groups
// are scaled and added in order, as floats: a row's bits do not depend on the rows beside it.
#pragma once

#if !defined(__AVX512F__)

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "product.h"

namespace baton {
namespace {

// Whether the values of a format's codes are integers.
template <class Format, class = void>
constexpr bool kIntegerCodes = false;
template <class Format>
constexpr bool kIntegerCodes<Format, std::enable_if_t<(Format::Values::kParts > 0)>> = true;

// Whether codes become integers as fast as integers are loaded.
template <class Codes, class = void>
constexpr bool kIsQuick = false;
template <class Codes>
constexpr bool kIsQuick<Codes, std::enable_if_t<Codes::kIsQuick>> = true;

// A row's values of a group.
struct GroupOfRow {
    float unit;          // what 1 stands for, of a product with codes
    std::int32_t start;  // the sum of the values times what is added to every code
};

// `Size` bfloat16 values to integers, a pair of neighbours in 32 bits.
template <int Size>
struct IntegerValues {
    std::int32_t pairs[Size / 2];
    std::int32_t total;
    float unit;

    [[gnu::always_inline]] explicit IntegerValues(const Bf16* x) {
        Vec values[Size / kWidth];
        IntVec largest = set1(std::int32_t{0});
        for (int i = 0; i < Size / kWidth; ++i) {
            values[i] = load(x + i * kWidth);
            const IntVec size = both(as_int(values[i]), set1(0x7fffffff));
            largest = _mm256_max_epi32(largest, size);
        }
        const std::int32_t exponent = std::max(kLeast, highest(largest) >> 23);
        unit = power(exponent - kBits);
        if (exponent == kNoNumber) unit = std::numeric_limits<float>::quiet_NaN();
        const Vec inverse = set1(power(2 * kBias - exponent + kBits));
        IntVec totals = set1(std::int32_t{0});
        for (int i = 0; i < Size / kWidth; i += 2) {
            const IntVec low = to_int(mul(values[i], inverse));
            const IntVec high = to_int(mul(values[i + 1], inverse));
            totals = add(totals, add(low, high));
            // Words of both halves take turns.
            const IntVec words = _mm256_packs_epi32(low, high);
            store_bytes(pairs + i * kWidth / 2, _mm256_permute4x64_epi64(words, 0xd8));
        }
        total = sum_of(totals);
    }

  private:
    static constexpr std::int32_t kBias = 127, kNoNumber = 255;
    static constexpr std::int32_t kBits = 14;          // below the highest
    static constexpr std::int32_t kLeast = kBits + 1;  // exponent, for both powers to be floats

    static float power(std::int32_t exponent) {
        const std::int32_t bits = exponent << 23;
        float made;
        std::memcpy(&made, &bits, sizeof made);
        return made;
    }
    static std::int32_t highest(IntVec x) {
        __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
        return _mm_cvtsi128_si32(_mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
    }
    static std::int32_t sum_of(IntVec x) {
        __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1)));
    }
};

template <class Format>
class IntegerProduct {
  public:
    explicit IntegerProduct(const Call& call)
        : call_(call), chunks_(call.weight.depth / Format::kChunk) {}

    void run(std::int64_t rows) const {
        for (std::int64_t first = 0; first < rows; first += kSlab) {
            slab(first, std::min(kSlab, rows - first));
        }
    }

  private:
    using Codes = typename Format::Values;
    static constexpr int kGroup = Codes::kSize, kSteps = kGroup / 2;
    static constexpr int kMaxRows = 4;         // whose sums of a group are in registers
    static constexpr std::int64_t kSlab = 64;  // rows whose values stay in the second cache

    // A group's weights, [step][left or right].
    using Unpacked = IntVec[kSteps][2];

    // Rows of x: pairs [group][block][step][row], the rest [group][row].
    struct Rows {
        std::int32_t* pairs;
        GroupOfRow* groups;
        float* totals;  // sums of values, of formats with minima
        std::int64_t count, blocks;

        std::int64_t begin(std::int64_t block) const { return block * count / blocks; }
        std::int64_t size(std::int64_t block) const { return begin(block + 1) - begin(block); }
    };

    std::int64_t groups() const { return chunks_ * Format::kGroups; }

    void slab(std::int64_t first, std::int64_t rows) const {
        const std::size_t pair_bytes = rows * groups() * kSteps * sizeof(std::int32_t);
        const std::size_t group_bytes = rows * groups() * sizeof(GroupOfRow);
        const std::size_t total_bytes = Format::kHasMinimum ? rows * groups() * sizeof(float) : 0;
        std::uint8_t* memory = workspace<kRows>(pair_bytes + group_bytes + total_bytes);
        const Rows x{reinterpret_cast<std::int32_t*>(memory),
                     reinterpret_cast<GroupOfRow*>(memory + pair_bytes),
                     reinterpret_cast<float*>(memory + pair_bytes + group_bytes), rows,
                     (rows + kMaxRows - 1) / kMaxRows};
        share(call_.worth_threads(rows), x.blocks, [&](std::int64_t from, std::int64_t to) {
            for (std::int64_t block = from; block < to; ++block) pack(first, block, x);
        });
        multiply(first, x);
    }

    void pack(std::int64_t first, std::int64_t block, const Rows& x) const {
        const std::int64_t size = x.size(block);
        for (std::int64_t row = x.begin(block); row < x.begin(block + 1); ++row) {
            const Bf16* from = static_cast<const Bf16*>(call_.x) + (first + row) * call_.stride;
            for (std::int64_t group = 0; group < groups(); ++group, from += kGroup) {
                const IntegerValues<kGroup> values(from);
                std::int32_t* to = x.pairs + (group * x.count + x.begin(block)) * kSteps;
                to += row - x.begin(block);
                for (int step = 0; step < kSteps; ++step) to[step * size] = values.pairs[step];
                const std::int64_t at = group * x.count + row;
                x.groups[at] = {values.unit / Codes::kParts, values.total * Codes::kOffset};
                if constexpr (Format::kHasMinimum)
                    x.totals[at] = static_cast<float>(values.total) * values.unit;
            }
        }
    }

    // Panel by panel, and by blocks too where panels are fewer than threads.
    void multiply(std::int64_t first, const Rows& x) const {
        const std::int64_t panels = call_.panels(), parts = call_.parts(x.blocks);
        share(call_.worth_threads(x.count), panels * parts, [&](std::int64_t i, std::int64_t to) {
            for (; i < to; ++i) {
                const std::int64_t panel = i / parts, part = i % parts;
                const std::int64_t begin = x.blocks * part / parts;
                const std::int64_t end = x.blocks * (part + 1) / parts;
                if (is_unpacked_once(end - begin)) {
                    many(first, panel, begin, end, x);
                    continue;
                }
                for (std::int64_t b = begin; b < end; ++b) {
                    kAlone[x.size(b) - 1](*this, first, panel, b, x);
                }
            }
        });
    }

    // Of few blocks sums in memory cost more than unpacking again, of quick codes always.
    static bool is_unpacked_once(std::int64_t blocks) {
        constexpr std::int64_t kFew = 2;
        return !kIsQuick<Codes> && blocks > kFew;
    }

    const std::uint8_t* chunks_of(std::int64_t panel) const {
        return call_.weight.panels + panel * chunks_ * Format::kBytes;
    }

    // Sums of M rows, for two vectors of columns.
    template <int M>
    struct Sums {
        Vec left[M], right[M];
    };

    // Add a group of rows times weights, which `unpack(use)` gives step by step.
    template <int M, class Unpack>
    [[gnu::always_inline]] static void add_group(Sums<M>& sums, const std::uint8_t* chunk,
                                                 int group, std::int64_t at, std::int64_t begin,
                                                 const Rows& x, const Unpack& unpack) {
        const std::int32_t* pairs = x.pairs + (at * x.count + begin) * kSteps;
        const GroupOfRow* rows = x.groups + at * x.count + begin;
        IntVec left[M], right[M];
        for (int m = 0; m < M; ++m)
            left[m] = right[m] = set1(Codes::kOffset == 0 ? 0 : rows[m].start);
        unpack([&](int step, IntVec a, IntVec b) {
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
                left[m] = IntegerArithmetic::accumulate(left[m], a, pairs[step * M + m]);
                right[m] = IntegerArithmetic::accumulate(right[m], b, pairs[step * M + m]);
            }
        });
        const Pair scale = Format::scale(chunk, group);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const Vec unit = set1(rows[m].unit);
            sums.left[m] = fma(mul(to_float(left[m]), unit), scale.left, sums.left[m]);
            sums.right[m] = fma(mul(to_float(right[m]), unit), scale.right, sums.right[m]);
        }
        if constexpr (Format::kHasMinimum) {
            const Pair minimum = Format::minimum(chunk, group);
            const float* totals = x.totals + at * x.count + begin;
#pragma GCC unroll 4
            for (int m = 0; m < M; ++m) {
                sums.left[m] = fma(set1(totals[m]), minimum.left, sums.left[m]);
                sums.right[m] = fma(set1(totals[m]), minimum.right, sums.right[m]);
            }
        }
    }

    // One block: weights go from memory into the product.
    template <int M>
    [[gnu::flatten]] static void alone(const IntegerProduct& self, std::int64_t first,
                                       std::int64_t panel, std::int64_t block, const Rows& x) {
        const std::uint8_t* chunk = self.chunks_of(panel);
        const std::int64_t begin = x.begin(block);
        Sums<M> sums;
        for (int m = 0; m < M; ++m) sums.left[m] = sums.right[m] = zero();
        for (std::int64_t i = 0, at = 0; i < self.chunks_; ++i, chunk += Format::kBytes) {
            for (int group = 0; group < Format::kGroups; ++group, ++at) {
                add_group<M>(sums, chunk, group, at, begin, x, [&](auto&& use) {
                    unpack_and_ask<Format, IntegerArithmetic>(chunk, group, use);
                });
            }
        }
        alignas(64) float done[M][kColumns];
        for (int m = 0; m < M; ++m) {
            store(done[m], sums.left[m]);
            store(done[m] + kWidth, sums.right[m]);
        }
        finish<Bf16>(self.call_, panel, {done[0], done[0] + kWidth, kColumns, first + begin, M});
    }

    // Many blocks: each group of weights is unpacked once, and all rows pass.
    [[gnu::flatten]] void many(std::int64_t first, std::int64_t panel, std::int64_t begin,
                                  std::int64_t end, const Rows& x) const {
        alignas(64) float sums[kSlab][kColumns];
        const std::int64_t start = x.begin(begin), count = x.begin(end) - start;
        std::memset(sums, 0, count * sizeof sums[0]);
        const std::uint8_t* chunk = chunks_of(panel);
        for (std::int64_t i = 0, at = 0; i < chunks_; ++i, chunk += Format::kBytes) {
            for (int group = 0; group < Format::kGroups; ++group, ++at) {
                Unpacked weights;
                const auto keep = [&](int step, IntVec a, IntVec b) {
                    weights[step][0] = a;
                    weights[step][1] = b;
                };
                unpack_and_ask<Format, IntegerArithmetic>(chunk, group, keep);
                for (std::int64_t b = begin; b < end; ++b) {
                    const std::int64_t row = x.begin(b);
                    kAdd[x.size(b) - 1](sums + (row - start), chunk, group, at, row, x, weights);
                }
            }
        }
        const std::int64_t row = first + start;
        const Finished done{sums[0], sums[0] + kWidth, kColumns, row, static_cast<int>(count)};
        finish<Bf16>(call_, panel, done);
    }

    template <int M>
    static void add_block(float (*to)[kColumns], const std::uint8_t* chunk, int group,
                          std::int64_t at, std::int64_t begin, const Rows& x,
                          const Unpacked& weights) {
        Sums<M> sums;
        for (int m = 0; m < M; ++m) {
            sums.left[m] = load(to[m]);
            sums.right[m] = load(to[m] + kWidth);
        }
        add_group<M>(sums, chunk, group, at, begin, x, [&](auto&& use) {
#pragma GCC unroll 4
            for (int step = 0; step < kSteps; ++step)
                use(step, weights[step][0], weights[step][1]);
        });
        for (int m = 0; m < M; ++m) {
            store(to[m], sums.left[m]);
            store(to[m] + kWidth, sums.right[m]);
        }
    }

    using Alone = void (*)(const IntegerProduct&, std::int64_t, std::int64_t, std::int64_t,
                           const Rows&);
    using Add = void (*)(float (*)[kColumns], const std::uint8_t*, int, std::int64_t, std::int64_t,
                         const Rows&, const Unpacked&);
    static constexpr Alone kAlone[kMaxRows]{alone<1>, alone<2>, alone<3>, alone<4>};
    static constexpr Add kAdd[kMaxRows]{add_block<1>, add_block<2>, add_block<3>, add_block<4>};

    const Call& call_;
    const std::int64_t chunks_;
};

}  // namespace
}  // namespace baton

#endif
