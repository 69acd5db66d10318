// Streams of Gemma 3n: every function is of one token, whose streams lie side by side.

#include <algorithm>
#include <cstdint>

#include "activation.h"
#include "norm.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // values: some ten microseconds

// Mirrored in kernels/altup/streams.py.
struct Streams {
    int64_t count, active, hidden, bytes;
};

template <class Function>
void each_token(int64_t tokens, int64_t width, const Function& function) {
    share(tokens * width >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) function(t);
    });
}

// function(i, n) for vectors of at most kWidth values.
template <class Function>
void each_vector(int64_t size, const Function& function) {
    for (int64_t i = 0; i < size; i += kWidth)
        function(i, static_cast<int>(std::min<int64_t>(kWidth, size - i)));
}

template <class T>
float value(const T* x) {
    float lanes[kWidth];
    store(lanes, load_some(x, 1));
    return lanes[0];
}

// y[to] = x[to] + sum over `from` of weights[to, from] x[from], in the order of the streams.
template <class T>
void predict(const Streams& how, const T* x, const T* weights, T* y) {
    for (int64_t to = 0; to < how.count; to++) {
        each_vector(how.hidden, [&](int64_t i, int n) {
            Vec total = zero();
            for (int64_t from = 0; from < how.count; from++) {
                const Vec weight = set1(value(weights + to * how.count + from));
                total = fma(load_some(x + from * how.hidden + i, n), weight, total);
            }
            store_some(y + to * how.hidden + i, add(total, load_some(x + to * how.hidden + i, n)), n);
        });
    }
}

// y[s] = predicted[s] + (1 + shares[s]) (activated - predicted[active]).
template <class T>
void correct(const Streams& how, const T* predicted, const T* activated, const T* shares, T* y) {
    each_vector(how.hidden, [&](int64_t i, int n) {
        const Vec before = load_some(predicted + how.active * how.hidden + i, n);
        const Vec changed = sub(load_some(activated + i, n), before);
        for (int64_t s = 0; s < how.count; s++) {
            const Vec share = set1(1.0f + value(shares + s));
            const Vec kept = load_some(predicted + s * how.hidden + i, n);
            store_some(y + s * how.hidden + i, fma(changed, share, kept), n);
        }
    });
}

// All streams but the first plus `more`.
template <class T>
void extend(const Streams& how, const T* more, T* x) {
    for (int64_t s = 1; s < how.count; s++) {
        each_vector(how.hidden, [&](int64_t i, int n) {
            T* at = x + s * how.hidden + i;
            store_some(at, add(load_some(at, n), load_some(more + i, n)), n);
        });
    }
}

// y = the mean of the streams.
template <class T>
void average(const Streams& how, const T* x, T* y) {
    each_vector(how.hidden, [&](int64_t i, int n) {
        Vec total = load_some(x + i, n);
        for (int64_t s = 1; s < how.count; s++)
            total = add(total, load_some(x + s * how.hidden + i, n));
        store_some(y + i, div(total, set1(float(how.count))), n);
    });
}

template <class T>
float mean_square(const T* x, int64_t size) {
    return sum_over(x, int(size), [](Vec v, Vec t) { return fma(v, v, t); }) / size;
}

// Mirrored in kernels/altup/streams.py.
struct Likeness {
    int64_t hidden, x_stride, other_stride, stride, bytes;
    float least;  // of the mean square of x
};

// y = x with the root mean square of `other`.
template <class T>
void liken(const Likeness& how, const T* x, const T* other, T* y) {
    const float wanted = __builtin_sqrtf(mean_square(other, how.hidden));
    const float found = __builtin_sqrtf(std::max(mean_square(x, how.hidden), how.least));
    const Vec factor = set1(wanted / found);
    each_vector(how.hidden, [&](int64_t i, int n) {
        store_some(y + i, mul(load_some(x + i, n), factor), n);
    });
}

// Mirrored in kernels/altup/sparse_gate.py.
struct SparseGate {
    int64_t activation, size, gate_stride, up_stride, bytes;
    float deviations;  // of the gates above their mean: what is below is 0
};

template <class T, class Function>
void gate_row(const SparseGate& how, const Function& function, const T* gate, const T* up, T* y) {
    const float mean =
        sum_over(gate, int(how.size), [](Vec v, Vec t) { return add(t, v); }) / how.size;
    const auto square = [&](Vec v, Vec t) {
        const Vec away = sub(v, set1(mean));
        return fma(away, away, t);
    };
    const float variance = sum_over(gate, int(how.size), square) / how.size;
    const Vec least = set1(mean + __builtin_sqrtf(variance) * how.deviations);
    each_vector(how.size, [&](int64_t i, int n) {
        // For a NaN `max` returns its second operand.
        const Vec above = max(zero(), sub(load_some(gate + i, n), least));
        store_some(y + i, mul(function(above), load_some(up + i, n)), n);
    });
}

template <class Function>
void with_element(int64_t bytes, const Function& function) {
    if (bytes == 4)
        function(float{});
    else
        function(Bf16{});
}

}  // namespace
}  // namespace baton

// All of `how->bytes` per value. x and y [tokens, count, hidden]; weights [tokens, count, count].
extern "C" void baton_altup_predict(const baton::Streams* how, const void* x, const void* weights,
                                    int64_t tokens, void* y) {
    const int64_t width = how->count * how->hidden, each = how->count * how->count;
    baton::with_element(how->bytes, [&](auto element) {
        using T = decltype(element);
        baton::each_token(tokens, width, [&](int64_t t) {
            baton::predict(*how, static_cast<const T*>(x) + t * width,
                           static_cast<const T*>(weights) + t * each,
                           static_cast<T*>(y) + t * width);
        });
    });
}

// predicted and y [tokens, count, hidden], activated [tokens, hidden], shares [tokens, count].
extern "C" void baton_altup_correct(const baton::Streams* how, const void* predicted,
                                    const void* activated, const void* shares, int64_t tokens,
                                    void* y) {
    const int64_t width = how->count * how->hidden;
    baton::with_element(how->bytes, [&](auto element) {
        using T = decltype(element);
        baton::each_token(tokens, width, [&](int64_t t) {
            baton::correct(*how, static_cast<const T*>(predicted) + t * width,
                           static_cast<const T*>(activated) + t * how->hidden,
                           static_cast<const T*>(shares) + t * how->count,
                           static_cast<T*>(y) + t * width);
        });
    });
}

// x [tokens, count, hidden], changed in place; more [tokens, hidden].
extern "C" void baton_altup_extend(const baton::Streams* how, const void* more, int64_t tokens,
                                   void* x) {
    baton::with_element(how->bytes, [&](auto element) {
        using T = decltype(element);
        baton::each_token(tokens, how->count * how->hidden, [&](int64_t t) {
            baton::extend(*how, static_cast<const T*>(more) + t * how->hidden,
                          static_cast<T*>(x) + t * how->count * how->hidden);
        });
    });
}

// x [tokens, count, hidden], y [tokens, hidden].
extern "C" void baton_altup_average(const baton::Streams* how, const void* x, int64_t tokens,
                                    void* y) {
    baton::with_element(how->bytes, [&](auto element) {
        using T = decltype(element);
        baton::each_token(tokens, how->count * how->hidden, [&](int64_t t) {
            baton::average(*how, static_cast<const T*>(x) + t * how->count * how->hidden,
                           static_cast<T*>(y) + t * how->hidden);
        });
    });
}

// Rows of `hidden` values, their strides in `how`.
extern "C" void baton_altup_liken(const baton::Likeness* how, const void* x, const void* other,
                                  int64_t tokens, void* y) {
    baton::with_element(how->bytes, [&](auto element) {
        using T = decltype(element);
        baton::each_token(tokens, how->hidden, [&](int64_t t) {
            baton::liken(*how, static_cast<const T*>(x) + t * how->x_stride,
                         static_cast<const T*>(other) + t * how->other_stride,
                         static_cast<T*>(y) + t * how->stride);
        });
    });
}

// gate and up: rows of `size` values, their strides in `how`; y [tokens, size].
extern "C" void baton_sparse_gate(const baton::SparseGate* how, const void* gate, const void* up,
                                  int64_t tokens, void* y) {
    baton::with_element(how->bytes, [&](auto element) {
        using T = decltype(element);
        baton::with_activation(how->activation, [&](auto function) {
            baton::each_token(tokens, how->size, [&](int64_t t) {
                baton::gate_row(*how, function, static_cast<const T*>(gate) + t * how->gate_stride,
                                static_cast<const T*>(up) + t * how->up_stride,
                                static_cast<T*>(y) + t * how->size);
            });
        });
    });
}
