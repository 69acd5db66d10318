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

// By what queries are multiplied last, 1 + scale log(1 + floor((position + first) / floor)); mirrored
// in kernels/rope.py. A floor of 0: nothing.
struct Temperature {
    float scale, floor, first;
};

// Mirrored in kernels/rope.py.
struct Heads {
    HeadNorm query, key, value;
    Temperature temperature;
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

template <class T>
void turn_head(T* head, const T* cos, const T* sin, int dim, bool interleaved) {
    if (interleaved)
        rotate_neighbours(head, cos, sin, dim);
    else
        rotate(head, cos, sin, dim);
}

// x [count] times a factor; one of 1 leaves it as it is.
template <class T>
void multiply_all(T* x, int64_t count, float factor) {
    if (factor == 1.0f) return;
    const Vec times = set1(factor);
    for (int64_t i = 0; i < count; i += kWidth) {
        const int n = static_cast<int>(std::min<int64_t>(kWidth, count - i));
        store_some(x + i, mul(load_some(x + i, n), times), n);
    }
}

// Queries [count] of one token, by a factor of their own precision.
template <class T>
void heat(const Temperature& how, int64_t position, T* queries, int64_t count) {
    if (how.floor == 0) return;
    const float steps = std::floor((float(position) + how.first) / how.floor);
    T factor;
    store_one(&factor, 1.0f + how.scale * std::log1p(steps));
    float rounded[kWidth];
    store(rounded, load_some(&factor, 1));
    multiply_all(queries, count, rounded[0]);
}

// One token: heads [num_heads + 2 * num_kv_heads, head_dim], `to` its first key's place in a page.
template <class T, class P>
void place_token(const Heads& how, const Strides& strides, T* heads, const T* cos, const T* sin,
                 int64_t position, P* to) {
    const int rotated = how.num_heads + how.num_kv_heads, size = how.head_dim;
    T* key = heads + int64_t(how.num_heads) * size;
    const auto norm = [&] {
        norm_heads(how.query, how.num_heads, size, heads);
        norm_heads(how.key, how.num_kv_heads, size, key);
    };
    if (how.clip < INFINITY) clip_all(heads, int64_t(rotated + how.num_kv_heads) * size, how.clip);
    if (!how.norm_last) norm();
    for (int h = 0; h < rotated; h++)
        turn_head(heads + int64_t(h) * size, cos, sin, how.dim, how.interleaved);
    if (how.norm_last) norm();
    heat(how.temperature, position, heads, int64_t(how.num_heads) * size);
    T* value = heads + int64_t(rotated) * size;
    norm_heads(how.value, how.num_kv_heads, size, value);
    for (int h = 0; h < how.num_kv_heads; h++, key += size, value += size, to += strides.head) {
        keep(key, size, how.key_scale, to);
        keep(value, how.value_dim, how.value_scale, to + strides.value);
    }
}

template <class T, class P>
void place(const Heads& how, T* heads, int64_t tokens, const T* cos, const T* sin,
           const int64_t* slots, P* pages, int64_t page_size, const Strides& strides,
           const int64_t* positions) {
    const int64_t width = int64_t(2 * how.num_kv_heads + how.num_heads) * how.head_dim;
    share(tokens * width >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            const int64_t page = slots[t] / page_size, offset = slots[t] % page_size;
            place_token(how, strides, heads + t * width, cos + t * how.dim, sin + t * how.dim,
                        positions ? positions[t] : 0, pages + page * strides.page + offset * strides.token);
        }
    });
}

// Mirrored in kernels/rope.py: heads that are turned and no more. `angle_step` elements lie between
// the angles of two heads, 0 where they share them.
struct Rotation {
    int64_t num_heads, token_stride, head_stride, dim, angle_step, interleaved, bytes;
};

template <class T>
void rotate_all(const Rotation& how, T* heads, int64_t tokens, const T* cos, const T* sin) {
    const int64_t step = how.angle_step ? how.angle_step * how.num_heads : how.dim;
    share(tokens * how.num_heads * how.dim >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * how.num_heads; i < end * how.num_heads; i++) {
            const int64_t t = i / how.num_heads, h = i % how.num_heads;
            const int64_t at = t * step + h * how.angle_step;
            turn_head(heads + t * how.token_stride + h * how.head_stride, cos + at, sin + at,
                      int(how.dim), how.interleaved);
        }
    });
}

// Mirrored in kernels/rope.py: see layers/attention/mla.py.
struct Latents {
    HeadNorm norm;  // of latents
    Temperature temperature;
    int32_t num_heads, kv_rank, nope_dim, rope_dim;
    int32_t dim;  // of the `rope_dim` channels those that turn, the first ones
    int32_t interleaved, bytes;
    float latent_scale;
    int64_t query_stride, down_stride;
};

// One token: heads [num_heads + 1, kv_rank + rope_dim] whose queries have all but the rotated
// channels; the last head becomes what is kept.
template <class T>
void place_latent(const Latents& how, const T* query, const T* down, const T* cos, const T* sin,
                  int64_t position, T* heads, T* to) {
    const int64_t width = how.kv_rank + how.rope_dim, head = how.nope_dim + how.rope_dim;
    for (int64_t h = 0; h < how.num_heads; h++)
        std::copy_n(query + h * head + how.nope_dim, how.rope_dim, heads + h * width + how.kv_rank);
    T* kept = heads + how.num_heads * width;
    norm_row(down, how.norm.weight, how.norm.bias, how.norm.eps, how.norm.centered, how.kv_rank,
             kept);
    multiply_all(kept, how.kv_rank, how.latent_scale);
    std::copy_n(down + how.kv_rank, how.rope_dim, kept + how.kv_rank);
    for (int64_t h = 0; h <= how.num_heads; h++)
        turn_head(heads + h * width + how.kv_rank, cos, sin, how.dim, how.interleaved);
    heat(how.temperature, position, heads, how.num_heads * width);
    std::copy_n(kept, width, to);
}

template <class T>
void place_latents(const Latents& how, const T* query, const T* down, int64_t tokens, const T* cos,
                   const T* sin, const int64_t* positions, T* heads, const int64_t* slots, T* pages,
                   int64_t page_size, const Strides& strides) {
    const int64_t width = int64_t(how.num_heads + 1) * (how.kv_rank + how.rope_dim);
    share(tokens * width >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            const int64_t page = slots[t] / page_size, offset = slots[t] % page_size;
            place_latent(how, query + t * how.query_stride, down + t * how.down_stride,
                         cos + t * how.dim, sin + t * how.dim, positions ? positions[t] : 0,
                         heads + t * width, pages + page * strides.page + offset * strides.token);
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
// or of codes (pages.h), in the order that `strides` says; positions [tokens], or null without a
// temperature.
extern "C" void baton_place(const baton::Heads* how, void* heads, int64_t tokens, const void* cos,
                            const void* sin, const int64_t* slots, void* pages,
                            int64_t page_size, const baton::Strides* strides,
                            const int64_t* positions) {
    const auto run = [&](auto element, auto kept) {
        using T = decltype(element);
        using P = decltype(kept);
        baton::place(*how, static_cast<T*>(heads), tokens, static_cast<const T*>(cos),
                     static_cast<const T*>(sin), slots, static_cast<P*>(pages), page_size,
                     *strides, positions);
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

// heads [tokens, num_heads, dim or more], changed in place; cos and signed sin [tokens, 1 or
// num_heads, dim], all of `how->bytes`.
extern "C" void baton_rotate(const baton::Rotation* how, void* heads, int64_t tokens,
                             const void* cos, const void* sin) {
    const auto run = [&](auto element) {
        using T = decltype(element);
        baton::rotate_all(*how, static_cast<T*>(heads), tokens, static_cast<const T*>(cos),
                          static_cast<const T*>(sin));
    };
    if (how->bytes == 4)
        run(float{});
    else
        run(baton::Bf16{});
}

// query [tokens, num_heads, nope_dim + rope_dim], down [tokens, kv_rank + rope_dim], cos and signed
// sin [tokens, dim], positions [tokens] or null; heads as `place_latent` says; slots and pages as of
// `baton_place`, one plane and one head.
extern "C" void baton_place_latents(const baton::Latents* how, const void* query, const void* down,
                                    int64_t tokens, const void* cos, const void* sin,
                                    const int64_t* positions, void* heads, const int64_t* slots,
                                    void* pages, int64_t page_size,
                                    const baton::Strides* strides) {
    const auto run = [&](auto element) {
        using T = decltype(element);
        baton::place_latents(*how, static_cast<const T*>(query), static_cast<const T*>(down),
                             tokens, static_cast<const T*>(cos), static_cast<const T*>(sin),
                             positions, static_cast<T*>(heads), slots, static_cast<T*>(pages),
                             page_size, *strides);
    };
    if (how->bytes == 4)
        run(float{});
    else
        run(baton::Bf16{});
}
