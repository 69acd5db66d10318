// Between the projection of a layer and its attention: head norms, rotation, and the keys and
// values go to their pages, while each token's heads are in the nearest cache.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "norm.h"
#include "pages.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 16;  // values: some ten microseconds

// What a norm is over, and what has a weight of its own.
enum Over : int32_t { kNone = 0, kHead = 1, kEachHead = 2, kAllHeads = 3 };

// Mirrored in kernels/rope.py. Weight and bias may be null.
struct HeadNorm {
    const float *weight, *bias;
    int32_t over, centered;
    float eps;
};

// Mirrored in kernels/rope.py.
struct Heads {
    HeadNorm query, key;
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t value_dim;    // channels of a value that are kept, the first ones
    int32_t dim;          // rotated channels of each head, the first ones; 0: none
    int32_t interleaved;  // neighbouring channels make a pair
    int32_t norm_last;    // after the rotation
    int32_t bytes;
    float clip;     // of all heads, first of all; infinity: none
    int32_t codes;  // of the pages: 0 plain numbers, 1 Int8, 2 Fp8
    float key_scale, value_scale;  // of those codes; 0: what fits each of them
};

void store_one(float* to, float x) { *to = x; }
void store_one(Bf16* to, float x) { store_some(to, set1(x), 1); }

// x[i], x[i + dim / 2] turned by the angle i. `sin` holds the sign of each half.
template <class T>
void rotate(T* x, const T* cos, const T* sin, int dim) {
    const int half = dim / 2;
    for (int i = 0; i < half; i += kWidth) {
        const int n = std::min(kWidth, half - i);
        const Vec a = load_some(x + i, n), b = load_some(x + half + i, n);
        const Vec left = mul(a, load_some(cos + i, n));
        const Vec right = mul(b, load_some(cos + half + i, n));
        store_some(x + i, fma(b, load_some(sin + i, n), left), n);
        store_some(x + half + i, fma(a, load_some(sin + half + i, n), right), n);
    }
}

// The same where neighbours x[i], x[i + 1] make a pair.
template <class T>
void rotate_neighbours(T* x, const T* cos, const T* sin, int dim) {
    for (int i = 0; i < dim; i += kWidth) {
        const int n = std::min(kWidth, dim - i);
        const Vec pairs = load_some(x + i, n);
        const Vec turned = mul(swap_neighbours(pairs), load_some(sin + i, n));
        store_some(x + i, fma(pairs, load_some(cos + i, n), turned), n);
    }
}

template <class T>
void clip_all(T* x, int64_t count, float clip) {
    const Vec limit = set1(clip), least = set1(-clip);
    for (int64_t i = 0; i < count; i += kWidth) {
        const int n = static_cast<int>(std::min<int64_t>(kWidth, count - i));
        // For a NaN they return their second operand.
        store_some(x + i, max(least, min(limit, load_some(x + i, n))), n);
    }
}

template <class T>
void norm_heads(const HeadNorm& how, int count, int size, T* heads) {
    if (how.over == kNone) return;
    const bool whole = how.over == kAllHeads;
    const int parts = whole ? 1 : count, width = whole ? count * size : size;
    const int step = how.over == kEachHead ? size : 0;
    const auto of = [&](const float* values, int part) {
        return values ? values + part * step : nullptr;
    };
    for (int i = 0; i < parts; i++) {
        T* part = heads + i * width;
        norm_row(part, of(how.weight, i), of(how.bias, i), how.eps, how.centered, width, part);
    }
}

// One token: heads [num_heads + 2 * num_kv_heads, head_dim], `to` its first key's place in a page.
template <class T, class P>
void place_token(const Heads& how, const Strides& strides, T* heads, const T* cos, const T* sin,
                 P* to) {
    const int rotated = how.num_heads + how.num_kv_heads, size = how.head_dim;
    T* key = heads + int64_t(how.num_heads) * size;
    const auto norm = [&] {
        norm_heads(how.query, how.num_heads, size, heads);
        norm_heads(how.key, how.num_kv_heads, size, key);
    };
    if (how.clip < INFINITY) clip_all(heads, int64_t(rotated + how.num_kv_heads) * size, how.clip);
    if (!how.norm_last) norm();
    for (int h = 0; h < rotated; h++) {
        T* head = heads + int64_t(h) * size;
        if (how.interleaved)
            rotate_neighbours(head, cos, sin, how.dim);
        else
            rotate(head, cos, sin, how.dim);
    }
    if (how.norm_last) norm();
    const T* value = heads + int64_t(rotated) * size;
    for (int h = 0; h < how.num_kv_heads; h++, key += size, value += size, to += strides.head) {
        keep(key, size, how.key_scale, to);
        keep(value, how.value_dim, how.value_scale, to + strides.value);
    }
}

template <class T, class P>
void place(const Heads& how, T* heads, int64_t tokens, const T* cos, const T* sin,
           const int64_t* slots, P* pages, int64_t page_size, const Strides& strides) {
    const int64_t width = int64_t(2 * how.num_kv_heads + how.num_heads) * how.head_dim;
    share(tokens * width >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            const int64_t page = slots[t] / page_size, offset = slots[t] % page_size;
            place_token(how, strides, heads + t * width, cos + t * how.dim, sin + t * how.dim,
                        pages + page * strides.page + offset * strides.token);
        }
    });
}

// By how much positions turn the channels of a head; mirrored in kernels/rope.py.
struct Rope {
    const float* frequencies;  // [dim / 2]
    int32_t dim, interleaved, bytes;
    float factor;
};

// The angles of one position, [dim] each. One value at a time: what a token's are must not depend
// on where in a vector they are computed.
template <class T>
void turn(const Rope& how, int64_t position, T* cos, T* sin) {
    const int half = how.dim / 2, step = how.interleaved ? 2 : 1, other = how.interleaved ? 1 : half;
    for (int i = 0; i < half; i++) {
        const float phase = float(position) * how.frequencies[i];
        const float c = std::cos(phase) * how.factor, s = std::sin(phase) * how.factor;
        store_one(cos + i * step, c);
        store_one(cos + i * step + other, c);
        store_one(sin + i * step, -s);
        store_one(sin + i * step + other, s);
    }
}

constexpr int64_t kWorthAngles = 1 << 11;  // of which each takes some ten nanoseconds

template <class T>
void turn_all(const Rope& how, const int64_t* positions, int64_t tokens, T* cos, T* sin) {
    share(tokens * how.dim >= kWorthAngles, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++)
            turn(how, positions[t], cos + t * how.dim, sin + t * how.dim);
    });
}

}  // namespace
}  // namespace baton

// positions [tokens]; cos and sin [tokens, dim], the latter with the sign that `rotate` wants.
extern "C" void baton_turn(const baton::Rope* how, const int64_t* positions, int64_t tokens,
                           void* cos, void* sin) {
    using baton::Bf16;
    if (how->bytes == 4)
        baton::turn_all(*how, positions, tokens, static_cast<float*>(cos),
                        static_cast<float*>(sin));
    else
        baton::turn_all(*how, positions, tokens, static_cast<Bf16*>(cos), static_cast<Bf16*>(sin));
}

// heads [tokens, num_heads + 2 * num_kv_heads, head_dim], changed in place; cos and signed sin
// [tokens, dim], all of `how->bytes`; slots [tokens], page * page_size + offset; pages of the same,
// or of codes (pages.h), in the order that `strides` says.
extern "C" void baton_place(const baton::Heads* how, void* heads, int64_t tokens, const void* cos,
                            const void* sin, const int64_t* slots, void* pages,
                            int64_t page_size, const baton::Strides* strides) {
    const auto run = [&](auto element, auto kept) {
        using T = decltype(element);
        using P = decltype(kept);
        baton::place(*how, static_cast<T*>(heads), tokens, static_cast<const T*>(cos),
                     static_cast<const T*>(sin), slots, static_cast<P*>(pages), page_size,
                     *strides);
    };
    const auto choose = [&](auto element) {
        if (how->codes == 1)
            run(element, baton::Int8{});
        else if (how->codes == 2)
            run(element, baton::Fp8{});
        else
            run(element, element);
    };
    if (how->bytes == 4)
        choose(float{});
    else
        choose(baton::Bf16{});
}
