// A causal convolution over the inputs that pages keep: see kernels/convolution.py.

#include <cstdint>
#include <cstring>

#include "simd.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // values: some ten microseconds

constexpr int kMore = 2;  // mirrored in kernels/recurrent/convolution.py

// Mirrored in kernels/recurrent/convolution.py.
struct Convolution {
    const float* weights;  // [taps, channels], the last tap is the token's own
    const float* bias;     // [channels], or null
    void* pages;
    int64_t page, token, page_size;  // strides of pages and of their tokens; tokens of a page
    int64_t channels, taps, tail, first, at, bytes, silu;
    int64_t stride;                // of the inputs
    int64_t widths[kMore], strides[kMore];  // of what follows the tail
};

// Of a step, by token.
template <class T>
struct Inputs {
    const T* x;  // [tokens, stride]: channels, then the tail
    const T* more[kMore];
    const int64_t* slots;
    const int64_t* earlier;  // [tokens, taps - 1]
    const bool* missing;     // [tokens, taps - 1], or null
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

// Write what a token brings to its page.
template <class T>
void put(const Convolution& how, const Inputs<T>& in, int64_t t) {
    const T* x = in.x + t * how.stride;
    T* kept = row<T>(how, in.slots[t]);
    std::memcpy(kept, x, sizeof(T) * how.channels);
    kept += how.at + how.channels - how.first;
    std::memcpy(kept, x + how.channels, sizeof(T) * how.tail);
    kept += how.tail;
    for (int i = 0; i < kMore; kept += how.widths[i++])
        if (how.widths[i])
            std::memcpy(kept, in.more[i] + t * how.strides[i], sizeof(T) * how.widths[i]);
}

// One token: its inputs lie in its page already, as do those of the tokens before it.
template <class T>
void convolve(const Convolution& how, const Inputs<T>& in, int64_t t, T* out) {
    const T* x = in.x + t * how.stride;
    for (int64_t c = 0; c < how.channels; c += kWidth) {
        const int some = static_cast<int>(how.channels - c);
        const float* weight = how.weights + (how.taps - 1) * how.channels + c;
        Vec total = mul(load_some(x + c, some), load_some(weight, some));
        for (int64_t back = 0; back + 1 < how.taps; back++) {
            weight -= how.channels;
            const int64_t at = t * (how.taps - 1) + back;
            if (in.missing && in.missing[at]) continue;
            const T* before = row<T>(how, in.earlier[at]) + c;
            total = fma(load_some(before, some), load_some(weight, some), total);
        }
        if (how.bias) total = add(total, load_some(how.bias + c, some));
        total = rounded(total, static_cast<const T*>(nullptr));
        if (how.silu) total = silu(total);
        store_some(out + c, total, some);
    }
    T* kept = row<T>(how, in.slots[t]) + how.at;
    std::memcpy(kept, out + how.first, sizeof(T) * (how.channels - how.first));
}

template <class T>
void convolve_all(const Convolution& how, int64_t tokens, const Inputs<T>& in, T* out) {
    const bool worth = tokens * how.channels >= kWorthThreads;
    share(worth, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) put(how, in, t);
    });
    share(worth, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) convolve(how, in, t, out + t * how.channels);
    });
}

template <class T>
void convolve_as(const Convolution& how, int64_t tokens, const void* x, const int64_t* slots,
                 const int64_t* earlier, const bool* missing, const void* more,
                 const void* and_more, void* out) {
    const Inputs<T> in{static_cast<const T*>(x),
                       {static_cast<const T*>(more), static_cast<const T*>(and_more)},
                       slots, earlier, missing};
    convolve_all(how, tokens, in, static_cast<T*>(out));
}

// Mirrored in kernels/recurrent/convolution.py.
struct Rows {
    void* pages;
    int64_t page, token, page_size;        // strides of pages and of their tokens; tokens of a page
    int64_t widths[kMore], strides[kMore];  // of parts, in bytes as the strides above
};

}  // namespace
}  // namespace baton

// Write two parts side by side to the slots of tokens.
extern "C" void baton_put_rows(const baton::Rows* how, int64_t tokens, const int64_t* slots,
                               const char* part, const char* other) {
    for (int64_t t = 0; t < tokens; t++) {
        char* kept = static_cast<char*>(how->pages) + slots[t] / how->page_size * how->page +
                     slots[t] % how->page_size * how->token;
        std::memcpy(kept, part + t * how->strides[0], how->widths[0]);
        std::memcpy(kept + how->widths[0], other + t * how->strides[1], how->widths[1]);
    }
}

// more and and_more [tokens, a stride of their own], null where they have no width; out
// [tokens, channels].
extern "C" void baton_convolve(const baton::Convolution* how, int64_t tokens, const void* x,
                               const int64_t* slots, const int64_t* earlier, const bool* missing,
                               const void* more, const void* and_more, void* out) {
    const auto run = how->bytes == 4 ? baton::convolve_as<float> : baton::convolve_as<baton::Bf16>;
    run(*how, tokens, x, slots, earlier, missing, more, and_more, out);
}
