// Norms over the last axis.

#include <cstdint>
#include <vector>

#include "norm.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 16;  // values: some ten microseconds

// Mirrored in kernels/norm.py.
struct Norm {
    const float *weight, *bias;
    int32_t size, bytes, centered;
    float eps;
};

// y += residual, rounded as a sum of its own.
template <class T>
void add_row(const T* residual, int size, T* y) {
    for (int i = 0; i < size; i += kWidth) {
        const int some = size - i < kWidth ? size - i : kWidth;
        store_some(y + i, add(load_some(residual + i, some), load_some(y + i, some)), some);
    }
}

template <class T>
void norm(const Norm& how, const T* x, int64_t rows, const T* residual, T* y) {
    share(rows * how.size >= kWorthThreads, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const int64_t first = row * how.size;
            norm_row(x + first, how.weight, how.bias, how.eps, how.centered, how.size, y + first);
            if (residual) add_row(residual + first, how.size, y + first);
        }
    });
}

// Mirrored in kernels/norm.py.
struct GatedNorm {
    const float* weight;  // [size], or of one part where it is `shared`
    int64_t size, groups, bytes, gate_first, shared, silu;
    float eps;
};

// x times silu(gate) or sigmoid(gate); x and y may be one.
template <class T>
void gate_row(const float* x, const T* gate, int64_t size, bool with_silu, float* y) {
    for (int64_t i = 0; i < size; i += kWidth) {
        const int some = static_cast<int>(size - i);
        const Vec raw = load_some(gate + i, some);
        const Vec factor = with_silu ? silu(raw) : sigmoid(raw);
        store_some(y + i, mul(load_some(x + i, some), factor), some);
    }
}

template <class T>
void gated_row(const GatedNorm& how, const float* x, const T* gate, float* row, T* y) {
    const int64_t size = how.size / how.groups;
    if (how.gate_first) {
        gate_row(x, gate, how.size, how.silu, row);
        x = row;
    }
    for (int64_t part = 0; part < how.groups; part++) {
        const float* weight = how.weight + (how.shared ? 0 : part * size);
        norm_row(x + part * size, weight, nullptr, how.eps, false, static_cast<int>(size),
                 row + part * size);
    }
    if (!how.gate_first) gate_row(row, gate, how.size, how.silu, row);
    for (int64_t i = 0; i < how.size; i += kWidth) {
        const int some = static_cast<int>(how.size - i);
        store_some(y + i, load_some(row + i, some), some);
    }
}

template <class T>
void gated_norm(const GatedNorm& how, const float* x, const T* gate, int64_t stride, int64_t rows,
                T* y) {
    share(rows * how.size >= kWorthThreads, rows, [&](int64_t begin, int64_t end) {
        static thread_local std::vector<float> row;
        row.resize(how.size);
        for (int64_t i = begin; i < end; i++)
            gated_row(how, x + i * how.size, gate + i * stride, row.data(), y + i * how.size);
    });
}

}  // namespace
}  // namespace baton

// x, residual and y [rows, size], contiguous; residual may be null.
extern "C" void baton_norm(const baton::Norm* how, const void* x, int64_t rows,
                           const void* residual, void* y) {
    using baton::Bf16;
    if (how->bytes == 4)
        baton::norm(*how, static_cast<const float*>(x), rows, static_cast<const float*>(residual),
                    static_cast<float*>(y));
    else
        baton::norm(*how, static_cast<const Bf16*>(x), rows, static_cast<const Bf16*>(residual),
                    static_cast<Bf16*>(y));
}

// x and y [rows, size], contiguous; gate [rows, stride].
extern "C" void baton_gated_norm(const baton::GatedNorm* how, const float* x, const void* gate,
                                 int64_t stride, int64_t rows, void* y) {
    using baton::Bf16;
    if (how->bytes == 4)
        baton::gated_norm(*how, x, static_cast<const float*>(gate), stride, rows,
                          static_cast<float*>(y));
    else
        baton::gated_norm(*how, x, static_cast<const Bf16*>(gate), stride, rows,
                          static_cast<Bf16*>(y));
}
