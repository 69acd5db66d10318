// One row, normed in float: for the norm of a layer and for the norms of query and key heads.
#pragma once

#include "simd.h"

namespace baton {

// Sum of `of(lanes)` over a row, in one order: lane by lane, then across the lanes.
template <class T, class Of>
float sum_over(const T* row, int size, Of of) {
    Vec total = zero();
    int i = 0;
    for (; i + kWidth <= size; i += kWidth) total = of(load(row + i), total);
    float all = sum(total);
    // One at a time: what missing lanes would add is not zero for every `of`.
    for (; i < size; i++) {
        alignas(64) float lanes[kWidth];
        store(lanes, of(load_some(row + i, 1), zero()));
        all += lanes[0];
    }
    return all;
}

// y = (x - mean) / sqrt(variance + eps) * weight + bias; without `centered` mean is 0 and the
// variance the mean square. Weight and bias may be null; x and y may be one.
template <class T>
void norm_row(const T* x, const float* weight, const float* bias, float eps, bool centered,
              int size, T* y) {
    const Vec mean =
        centered ? set1(sum_over(x, size, [](Vec v, Vec t) { return add(t, v); }) / size) : zero();
    const auto square = [&](Vec v, Vec t) {
        const Vec away = sub(v, mean);
        return fma(away, away, t);
    };
    const float variance = sum_over(x, size, square) / size;
    const Vec scale = set1(1.0f / __builtin_sqrtf(variance + eps));
    for (int i = 0; i < size; i += kWidth) {
        const int n = size - i < kWidth ? size - i : kWidth;
        Vec v = mul(sub(load_some(x + i, n), mean), scale);
        if (weight) v = mul(v, load_some(weight + i, n));
        if (bias) v = add(v, load_some(bias + i, n));
        store_some(y + i, v, n);
    }
}

}  // namespace baton
