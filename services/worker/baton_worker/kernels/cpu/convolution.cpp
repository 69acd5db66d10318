// A causal convolution over the inputs that pages keep: see kernels/convolution.py.

#include <cstdint>
#include <cstring>

#include "simd.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // values: some ten microseconds

// Mirrored in kernels/convolution.py.
struct Convolution {
    const float* weights;  // [taps, channels], the last tap is the token's own
    const float* bias;     // [channels], or null
    void* pages;
    int64_t page, token, page_size;  // strides of pages and of their tokens; tokens of a page
    int64_t channels, taps, tail, first, at, bytes, silu;
};

template <class T>
T* row(const Convolution& how, int64_t slot) {
    return static_cast<T*>(how.pages) + slot / how.page_size * how.page +
           slot % how.page_size * how.token;
}

// What a float is once it has been written.
inline Vec rounded(Vec x, const float*) { return x; }
inline Vec rounded(Vec x, const Bf16*) {
    Bf16 kept[kWidth];
    store(kept, x);
    return load(kept);
}

// One token: its inputs lie in its page already, as do those of the tokens before it.
template <class T>
void convolve(const Convolution& how, int64_t tokens, int64_t t, const T* x, int64_t slot,
              const int64_t* earlier, const bool* missing, T* out) {
    T* kept = row<T>(how, slot) + how.at - how.first;
    for (int64_t c = 0; c < how.channels; c += kWidth) {
        const int some = static_cast<int>(how.channels - c);
        const float* weight = how.weights + (how.taps - 1) * how.channels + c;
        Vec total = mul(load_some(x + c, some), load_some(weight, some));
        for (int64_t back = 0; back + 1 < how.taps; back++) {
            const int64_t at = back * tokens + t;
            if (missing && missing[at]) continue;
            weight -= how.channels;
            const T* before = row<T>(how, earlier[at]) + c;
            total = fma(load_some(before, some), load_some(weight, some), total);
        }
        if (how.bias) total = add(total, load_some(how.bias + c, some));
        total = rounded(total, static_cast<const T*>(nullptr));
        if (how.silu) total = silu(total);
        store_some(out + c, total, some);
    }
    std::memcpy(kept + how.first, out + how.first, sizeof(T) * (how.channels - how.first));
}

template <class T>
void convolve_all(const Convolution& how, int64_t tokens, const T* x, int64_t stride,
                  const int64_t* slots, const int64_t* earlier, const bool* missing, T* out) {
    const bool worth = tokens * how.channels >= kWorthThreads;
    share(worth, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            T* mine = row<T>(how, slots[t]);
            std::memcpy(mine, x + t * stride, sizeof(T) * how.channels);
            std::memcpy(mine + how.at + how.channels - how.first, x + t * stride + how.channels,
                        sizeof(T) * how.tail);
        }
    });
    share(worth, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++)
            convolve(how, tokens, t, x + t * stride, slots[t], earlier, missing,
                     out + t * how.channels);
    });
}

}  // namespace
}  // namespace baton

// x [tokens, stride]: channels, then the tail; earlier and missing [taps - 1, tokens], missing may
// be null; out [tokens, channels].
extern "C" void baton_convolve(const baton::Convolution* how, int64_t tokens, const void* x,
                               int64_t stride, const int64_t* slots, const int64_t* earlier,
                               const bool* missing, void* out) {
    using baton::Bf16;
    if (how->bytes == 4)
        baton::convolve_all(*how, tokens, static_cast<const float*>(x), stride, slots, earlier,
                            missing, static_cast<float*>(out));
    else
        baton::convolve_all(*how, tokens, static_cast<const Bf16*>(x), stride, slots, earlier,
                            missing, static_cast<Bf16*>(out));
}
