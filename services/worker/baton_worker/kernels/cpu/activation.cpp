// Activations and gates, value by value.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "activation.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // values: some ten microseconds

template <class T, class Function>
void activate(const Function& function, const T* x, int64_t count, T* y) {
    const int64_t vectors = (count + kWidth - 1) / kWidth;
    share(count >= kWorthThreads, vectors, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * kWidth; i < std::min(end * kWidth, count); i += kWidth) {
            const int some = static_cast<int>(std::min<int64_t>(kWidth, count - i));
            store_some(y + i, function(load_some(x + i, some)), some);
        }
    });
}

template <class T>
void choose(int64_t which, const void* x, int64_t count, void* y) {
    with_activation(which, [&](auto function) {
        activate(function, static_cast<const T*>(x), count, static_cast<T*>(y));
    });
}

// xIELU: curvatures above and below zero, the slope there, the largest input of the exponential.
struct Xielu {
    float above, below, slope, floor;

    Xielu(float positive, float negative, float slope_, float floor_)
        : above(softplus(positive)), below(slope_ + softplus(negative)), slope(slope_),
          floor(floor_) {}

    static float softplus(float x) {
        return static_cast<float>(std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(double{x}))));
    }

    Vec operator()(Vec x) const {
        const Vec risen = mul(mul(x, x), set1(above));
        const Vec bent = mul(sub(expm1(min(x, set1(floor))), x), set1(below));
        return fma(x, set1(slope), from_limit(x, zero(), risen, bent));
    }
};

// Mirrored in activation.py.
struct Gating {
    int64_t activation;               // negative: a gate is used as it is
    int64_t x_bytes, bytes;           // of x; of gates and results
    int64_t width, each;              // values of a row; consecutive ones share a gate
    int64_t x_stride, gate_stride;
};

template <class Function, class X, class T>
void gate_row(const Gating& how, const Function& function, const X* x, const T* gate, T* y) {
    const int64_t wide = how.each == 1 ? how.width : how.each;
    for (int64_t part = 0; part < how.width; part += wide) {
        const Vec shared = function(load_some(gate + part / how.each, 1));
        float lanes[kWidth];
        store(lanes, shared);
        for (int64_t i = part; i < part + wide; i += kWidth) {
            const int some = static_cast<int>(std::min<int64_t>(kWidth, part + wide - i));
            const Vec factor = how.each == 1 ? function(load_some(gate + i, some)) : set1(lanes[0]);
            store_some(y + i, mul(load_some(x + i, some), factor), some);
        }
    }
}

template <class X, class T>
void gate_rows(const Gating& how, const X* x, const T* gate, int64_t rows, T* y) {
    share(rows * how.width >= kWorthThreads, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const auto run = [&](auto function) {
                gate_row(how, function, x + row * how.x_stride, gate + row * how.gate_stride,
                         y + row * how.width);
            };
            if (how.activation < 0)
                run([](Vec v) { return v; });
            else
                with_activation(how.activation, run);
        }
    });
}

}  // namespace
}  // namespace baton

// x [rows, x_stride] times the gates [rows, gate_stride]: y [rows, width].
extern "C" void baton_gate(const baton::Gating* how, const void* x, const void* gate, int64_t rows,
                           void* y) {
    using baton::Bf16;
    const auto run = [&](auto as_x, auto as) {
        using X = decltype(as_x);
        using T = decltype(as);
        baton::gate_rows(*how, static_cast<const X*>(x), static_cast<const T*>(gate), rows,
                         static_cast<T*>(y));
    };
    if (how->bytes == 4)
        run(float(), float());
    else if (how->x_bytes == 4)
        run(float(), Bf16());
    else
        run(Bf16(), Bf16());
}

// x and y: `count` values of `bytes` each, 2 is bfloat16 and 4 is float.
extern "C" void baton_activate(int64_t which, int64_t bytes, const void* x, int64_t count,
                               void* y) {
    if (bytes == 4)
        baton::choose<float>(which, x, count, y);
    else
        baton::choose<baton::Bf16>(which, x, count, y);
}

// x and y as in `baton_activate`; parameters as `layers.ffn.xielu` names them.
extern "C" void baton_xielu(int64_t bytes, const void* x, int64_t count, const float* positive,
                            const float* negative, const float* slope, const float* floor,
                            void* y) {
    using baton::Bf16;
    const baton::Xielu function(*positive, *negative, *slope, *floor);
    if (bytes == 4)
        baton::activate(function, static_cast<const float*>(x), count, static_cast<float*>(y));
    else
        baton::activate(function, static_cast<const Bf16*>(x), count, static_cast<Bf16*>(y));
}
