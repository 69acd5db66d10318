// Activations of feed-forwards by their numbers.
#pragma once

#include "simd.h"

namespace baton {

// Mirrored in activation.py.
enum Activation : int64_t {
    kGeluTanh = 0,
    kQuickGelu = 1,
    kGelu = 2,
    kSilu = 3,
    kSigmoid = 4,
    kTanh = 5,
    kRelu = 6,
    kRelu2 = 7,
    kSoftplus = 8,
};

inline Vec negated(Vec x) { return sub(zero(), x); }
inline Vec absolute(Vec x) { return max(x, negated(x)); }

// x where `tested` is at least `limit`, else y.
inline Vec from_limit(Vec tested, Vec limit, Vec x, Vec y) {
    return add(zero_below(tested, limit, x), sub(y, zero_below(tested, limit, y)));
}

// x times the logistic function of 1.702 x.
inline Vec quick_gelu(Vec x) { return div(x, add(set1(1.0f), exp(mul(x, set1(-1.702f))))); }

// 1 - erf(z) for z >= 0, as t P(t) e^(-z^2) with t = 1 / (1 + z / 2); P is fitted to 5e-8 of that.
inline Vec erfc(Vec z) {
    const Vec t = div(set1(1.0f), fma(z, set1(0.5f), set1(1.0f)));
    Vec p = set1(-0.058796626f);
    p = fma(p, t, set1(0.283241f));
    p = fma(p, t, set1(-0.48442477f));
    p = fma(p, t, set1(0.2748745f));
    p = fma(p, t, set1(-0.024411632f));
    p = fma(p, t, set1(0.20174262f));
    p = fma(p, t, set1(0.24334468f));
    p = fma(p, t, set1(0.2823418f));
    p = fma(p, t, set1(0.28208834f));
    return mul(mul(t, p), exp(negated(mul(z, z))));
}

// x times the normal distribution function of x.
inline Vec gelu(Vec x) {
    const Vec below = mul(set1(0.5f), erfc(mul(absolute(x), set1(0.70710678f))));
    return mul(x, from_limit(x, zero(), sub(set1(1.0f), below), below));
}

// Near zero a polynomial (the coefficients are those of Cephes' tanhf), elsewhere by e^(2 |x|).
inline Vec tanh(Vec x) {
    const Vec size = absolute(x), small = max(set1(-1.0f), min(set1(1.0f), x));
    const Vec square = mul(small, small);
    Vec p = set1(-5.70498872745e-3f);
    p = fma(p, square, set1(2.06390887954e-2f));
    p = fma(p, square, set1(-5.37397155531e-2f));
    p = fma(p, square, set1(1.33314422036e-1f));
    p = fma(p, square, set1(-3.33332819422e-1f));
    const Vec near = fma(mul(p, square), small, small);
    const Vec growth = exp(add(size, size));
    const Vec far = sub(set1(1.0f), div(set1(2.0f), add(growth, set1(1.0f))));
    const Vec signed_far = from_limit(x, zero(), far, negated(far));
    return from_limit(size, set1(0.625f), signed_far, near);
}

// e^x - 1: near zero a series.
inline Vec expm1(Vec x) {
    const Vec small = max(x, set1(-0.25f));
    Vec series = set1(1.0f);
    for (float n = 7; n > 1; n--) series = fma(mul(series, small), set1(1 / n), set1(1.0f));
    return from_limit(x, set1(-0.25f), mul(series, small), sub(exp(x), set1(1.0f)));
}

inline Vec relu(Vec x) { return max(zero(), x); }

// use(function) with the activation of a number.
template <class Use>
void with_activation(int64_t which, const Use& use) {
    switch (which) {
        case kGeluTanh: return use([](Vec x) { return gelu_tanh(x); });
        case kQuickGelu: return use([](Vec x) { return quick_gelu(x); });
        case kGelu: return use([](Vec x) { return gelu(x); });
        case kSilu: return use([](Vec x) { return silu(x); });
        case kSigmoid: return use([](Vec x) { return sigmoid(x); });
        case kTanh: return use([](Vec x) { return tanh(x); });
        case kRelu: return use([](Vec x) { return relu(x); });
        case kRelu2: return use([](Vec x) { return mul(relu(x), relu(x)); });
        case kSoftplus: return use([](Vec x) { return softplus(x); });
    }
}

}  // namespace baton
