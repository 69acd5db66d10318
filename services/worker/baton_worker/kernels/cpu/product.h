// What every product of linear.cpp shares: its weight, its call, and what happens to a finished sum.
//
// In a namespace without a name: one library uses it, and g++ would keep one copy of its variables
// for libraries of several levels.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "compact.h"
#include "formats.h"

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

    CompactPanels compact() const { return {panels, bases, starts, exceptions, depth}; }
};

namespace {

struct Call {
    const Weight& weight;
    const void* x;
    std::int64_t stride;  // elements between rows of x
    const void* residual;
    void* out;

    std::int64_t panel_columns() const {
        return weight.activation == kNone ? kColumns : kWidth;
    }
    std::int64_t panels() const {
        return (weight.columns + panel_columns() - 1) / panel_columns();
    }
};

// Memory that grows to the largest request and stays with its thread; a new request for the same
// use ends the last.
enum Use { kRows, kPanel };
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

// ---- What happens to a finished sum

template <class T>
void write(const Call& call, std::int64_t row, std::int64_t column, Vec y) {
    const Weight& w = call.weight;
    const std::int64_t at = row * w.stride + column;
    const int count = static_cast<int>(std::min<std::int64_t>(kWidth, w.columns - column));
    if (count <= 0) return;
    if (call.residual != nullptr) {
        y = add(y, load_some(static_cast<const T*>(call.residual) + at, count));
    }
    if (w.output_is_float) {
        store_some(static_cast<float*>(call.out) + at, y, count);
    } else {
        store_some(static_cast<Bf16*>(call.out) + at, y, count);
    }
}

template <class T>
void finish(const Call& call, std::int64_t row, std::int64_t panel, Vec left, Vec right) {
    const Weight& w = call.weight;
    if (w.bias != nullptr) {
        left = add(left, load(w.bias + panel * kColumns));
        right = add(right, load(w.bias + panel * kColumns + kWidth));
    }
    if (w.activation == kNone) {
        write<T>(call, row, panel * kColumns, left);
        write<T>(call, row, panel * kColumns + kWidth, right);
    } else {
        const Vec gate = w.activation == kSilu ? silu(left) : gelu_tanh(left);
        write<T>(call, row, panel * kWidth, mul(gate, right));
    }
}

}  // namespace
}  // namespace baton
