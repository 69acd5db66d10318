// Between the projection of a layer and its attention: head norms, rotation, and the keys and
// values go to their pages, while each token's heads are in the nearest cache.

#include <algorithm>
#include <cstdint>

#include "norm.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 16;  // values: some ten microseconds

// Mirrored in kernels/rope.py. A head_dim's norm is left out where `normed` is 0.
struct Heads {
    const float *query_weight, *key_weight;
    int32_t num_heads, num_kv_heads, head_dim;
    int32_t dim;  // rotated channels of each head, the first ones
    int32_t bytes, normed;
    float query_eps, key_eps;
};

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

// One token: heads [num_heads + 2 * num_kv_heads, head_dim], `to` its place in a page.
template <class T>
void place_token(const Heads& how, T* heads, const T* cos, const T* sin, T* to) {
    const int rotated = how.num_heads + how.num_kv_heads, size = how.head_dim;
    for (int h = 0; h < rotated; h++) {
        T* head = heads + int64_t(h) * size;
        const bool is_query = h < how.num_heads;
        if (how.normed)
            norm_row(head, is_query ? how.query_weight : how.key_weight, nullptr,
                     is_query ? how.query_eps : how.key_eps, false, size, head);
        rotate(head, cos, sin, how.dim);
    }
    const T* key = heads + int64_t(how.num_heads) * size;
    std::copy_n(key, int64_t(2) * how.num_kv_heads * size, to);
}

template <class T>
void place(const Heads& how, T* heads, int64_t tokens, const T* cos, const T* sin,
           const int64_t* slots, T* pages) {
    const int64_t kept = int64_t(2) * how.num_kv_heads * how.head_dim;
    const int64_t width = kept + int64_t(how.num_heads) * how.head_dim;
#pragma omp parallel for schedule(static) if (tokens > 1 && tokens * width >= kWorthThreads)
    for (int64_t t = 0; t < tokens; t++)
        place_token(how, heads + t * width, cos + t * how.dim, sin + t * how.dim,
                    pages + slots[t] * kept);
}

}  // namespace
}  // namespace baton

// heads [tokens, num_heads + 2 * num_kv_heads, head_dim], changed in place; cos and signed sin
// [tokens, dim]; slots [tokens]; pages [slots, 2, num_kv_heads, head_dim]. All of `how->bytes`.
extern "C" void baton_place(const baton::Heads* how, void* heads, int64_t tokens, const void* cos,
                            const void* sin, const int64_t* slots, void* pages) {
    const auto run = [&](auto element) {
        using T = decltype(element);
        baton::place(*how, static_cast<T*>(heads), tokens, static_cast<const T*>(cos),
                     static_cast<const T*>(sin), slots, static_cast<T*>(pages));
    };
    if (how->bytes == 4)
        run(float{});
    else
        run(baton::Bf16{});
}
