// What all products share: the weight, the call, and what happens to finished sums.
//
// In a namespace without a name: one library uses it, and g++ would keep one copy of its variables
// for libraries of several levels.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "compact.h"
#include "formats.h"
#include "team.h"

namespace baton {
namespace {

enum Activation : std::int32_t { kNone = 0, kSilu = 1, kGeluTanh = 2 };
enum Kind : std::int32_t {
    kFloat32 = 0,
    kBfloat16 = 1,
    kInt8 = 2,
    kInt4 = 3,
    kInt4Minimum = 4,
    kInt4Super = 5,
    kInt6Super = 6,
    kInt4Offset = 7,
    kCompact = 8,
    kMxfp4 = 9,
    kNvfp4 = 10,
    kFp8 = 11,
    // Of block_linear.cpp.
    kInt5 = 12,
    kInt5Minimum = 13,
    kInt5Super = 14,
    kInt3Super = 15,
    kInt2Super = 16,
    kTernary = 17,
    kIq4 = 18,
    kIq4Super = 19,
    kIq3XxsSuper = 20,
    kIq3SSuper = 21,
    kIq2Super = 22,
    kIq1Super = 23,
    kNf4 = 24,
    kFp4 = 25,
    kInt8Float = 26,
};

}  // namespace

// A packed weight. The field order is that of `_Weight` in kernels/linear.py.
struct Weight {
    const std::uint8_t* panels;
    const float* bias;            // one per packed column, or null
    std::int64_t columns;         // of the result
    std::int64_t depth;           // values of k in a row of x
    std::int64_t stride;          // elements between rows of residual and of the result
    std::int32_t kind;            // format of the panels
    std::int32_t input_is_float;  // x and residual are float32, not bfloat16
    std::int32_t output_is_float;
    std::int32_t activation;      // not none: a panel holds kWidth columns of gate, then of up
    // Of a compact weight, see CompactPanels.
    const std::int32_t* bases;
    const std::uint32_t* starts;
    const Exception* exceptions;
    // Of every row, below 0 for none; a gated weight with a residual has them.
    const std::int32_t* adapters;
    // By adapter, null or one for each packed column, which multiplies the sums of its rows; null
    // while there are none.
    const float* const* factors;

    const float* factors_of(std::int64_t row) const {
        return factors == nullptr || adapters[row] < 0 ? nullptr : factors[adapters[row]];
    }

    CompactPanels compact() const { return {panels, bases, starts, exceptions, depth}; }
};

namespace {

struct Call {
    const Weight& weight;
    const void* x;
    std::int64_t stride;  // elements between rows of x
    const void* residual; // of a gated weight what adapters add before the gate: float32 [rows,
                          // gate columns, then up columns], read of rows that have one
    void* out;

    std::int64_t panel_columns() const {
        return weight.activation == kNone ? kColumns : kWidth;
    }
    std::int64_t panels() const {
        return (weight.columns + panel_columns() - 1) / panel_columns();
    }
    // Below this, threads cost more than they save.
    bool worth_threads(std::int64_t rows) const {
        return rows * weight.depth * weight.columns > 32768;
    }
    // Into how many parts the rows of a panel go, where panels are fewer than threads.
    std::int64_t parts(std::int64_t blocks) const {
        return std::clamp<std::int64_t>(omp_get_max_threads() / panels(), 1, blocks);
    }
};

// Memory that grows to the largest request and stays with its thread; a new request for the same
// use ends the last.
enum Use { kRows, kPanel, kSums };
template <Use>
std::uint8_t* workspace(std::size_t wanted) {
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    static thread_local std::unique_ptr<void, Free> memory;
    static thread_local std::size_t size = 0;
    const std::size_t bytes = (wanted + 63) / 64 * 64;
    if (bytes > size) {
        memory.reset(std::aligned_alloc(64, bytes));
        size = memory ? bytes : 0;
    }
    return static_cast<std::uint8_t*>(memory.get());
}

// Asks for bytes step by step, into the second cache; in the end for the last line again.
class Ahead {
  public:
    Ahead() = default;
    Ahead(const std::uint8_t* from, std::int64_t bytes, std::int64_t steps)
        : at_(from), last_(from + bytes), each_(lines((bytes + steps - 1) / steps)) {}

    [[gnu::always_inline]] void ask() {
        prefetch_later(at_, each_);
        at_ = std::min(at_ + each_, last_);
    }

  private:
    static std::int64_t lines(std::int64_t bytes) {
        constexpr std::int64_t kLine = 64;
        return (bytes + kLine - 1) / kLine * kLine;
    }

    const std::uint8_t *at_ = nullptr, *last_ = nullptr;
    std::int64_t each_ = 0;
};

// Unpacks a group, and asks for one that is some groups away, into the second cache: the lines of a
// chunk at once would fill the core's buffers of misses, and the loads of this group would wait.
template <class Format, class Arithmetic, class Use>
[[gnu::always_inline]] inline void unpack_and_ask(const std::uint8_t* chunk, int group,
                                                  const Use& use) {
    constexpr int kDistance = 16384, kLine = 64;
    constexpr int kSteps = Format::kChunk / Format::kGroups / Arithmetic::kStep;
    constexpr int kBytes = Format::kBytes / Format::kGroups;
    // A line with each step, where steps leave registers for it: those of single floats do not.
    constexpr int kLines = Arithmetic::kStep == 1 ? 0 : std::min(kSteps, kBytes / kLine);
    const std::uint8_t* ahead = chunk + kDistance + group * kBytes;
    prefetch_later(ahead + kLines * kLine, kBytes - kLines * kLine);
    Format::template unpack<Arithmetic>(chunk, group, [&](int step, auto left, auto right) {
        if (step < kLines) prefetch_later(ahead + step * kLine, kLine);
        use(step, left, right);
    });
}

// x [rows][k] with `stride` elements between rows to the sum of every group of k, [group][row].
// Quantised weights have no odd end.
template <int Group, class T>
void add_groups_up(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t groups,
                   float* to) {
    for (std::int64_t row = 0; row < rows; ++row) {
        const T* from = x + row * stride;
        for (std::int64_t group = 0; group < groups; ++group, from += Group) {
            Vec sums = load(from);
            for (int i = kWidth; i < Group; i += kWidth) sums = add(sums, load(from + i));
            to[group * rows + row] = sum(sums);
        }
    }
}

// ---- What happens to finished sums

// Of some rows from `first` on, two vectors of columns each; rows are `step` floats apart.
struct Finished {
    const float *left, *right;
    std::int64_t step, first;
    int count;
};

// `count` values, a vector of them if `Whole`.
template <bool Whole, class T>
Vec load_up_to(const T* p, int count) {
    if constexpr (Whole) return load(p);
    return load_some(p, count);
}

template <class Out, bool Whole>
[[gnu::always_inline]] inline void put(const Call& call, std::int64_t at, Vec y, int count) {
    Out* to = static_cast<Out*>(call.out) + at;
    if constexpr (Whole) {
        store(to, y);
    } else {
        store_some(to, y, count);
    }
}

template <class T, class Out, bool Whole>
[[gnu::always_inline]] inline void write(const Call& call, std::int64_t at, Vec y, int count) {
    if (!Whole && count <= 0) return;
    if (call.residual != nullptr) {
        y = add(y, load_up_to<Whole>(static_cast<const T*>(call.residual) + at, count));
    }
    put<Out, Whole>(call, at, y, count);
}

// What adapters add to a row of a gated weight, before the gate.
template <bool Whole>
void add_adapted(const Call& call, std::int64_t row, std::int64_t column, int count, Vec& gate,
                 Vec& up) {
    const Weight& w = call.weight;
    if (call.residual == nullptr || w.adapters[row] < 0) return;
    const float* more = static_cast<const float*>(call.residual) + 2 * row * w.columns + column;
    gate = add(gate, load_up_to<Whole>(more, count));
    up = add(up, load_up_to<Whole>(more + w.columns, count));
}

template <class T, class Out, bool Whole>
void write(const Call& call, std::int64_t panel, int count, const Finished& sums) {
    const Weight& w = call.weight;
    const std::int64_t column = panel * call.panel_columns();
    for (int m = 0; m < sums.count; ++m) {
        Vec left = load(sums.left + m * sums.step), right = load(sums.right + m * sums.step);
        const std::int64_t at = (sums.first + m) * w.stride + column;
        if (const float* factors = w.factors_of(sums.first + m)) {
            left = mul(left, load(factors + panel * kColumns));
            right = mul(right, load(factors + panel * kColumns + kWidth));
        }
        if (w.bias != nullptr) {
            left = add(left, load(w.bias + panel * kColumns));
            right = add(right, load(w.bias + panel * kColumns + kWidth));
        }
        if (w.activation == kNone) {
            write<T, Out, Whole>(call, at, left, count);
            write<T, Out, Whole>(call, at + kWidth, right, count - kWidth);
        } else {
            add_adapted<Whole>(call, sums.first + m, column, count, left, right);
            const Vec gate = w.activation == kSilu ? silu(left) : gelu_tanh(left);
            put<Out, Whole>(call, at, mul(gate, right), count);
        }
    }
}

// Factors, bias, activation, residual, rounding. Once for many products: it would be a copy in each.
template <class T>
__attribute__((noinline)) void finish(const Call& call, std::int64_t panel, Finished sums) {
    const std::int64_t wanted = call.panel_columns();
    const std::int64_t left = call.weight.columns - panel * wanted;
    const int count = static_cast<int>(std::min(wanted, left));
    const bool whole = count == wanted;
    if (call.weight.output_is_float) {
        whole ? write<T, float, true>(call, panel, count, sums)
              : write<T, float, false>(call, panel, count, sums);
    } else {
        whole ? write<T, Bf16, true>(call, panel, count, sums)
              : write<T, Bf16, false>(call, panel, count, sums);
    }
}

}  // namespace
}  // namespace baton
