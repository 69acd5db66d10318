// What tokens add to a state, and what they read of it: see kernels/ssm_states.py.
//
// A state is a matrix, a row for every channel of a key. Rows of keys and values are those of one
// page, so sums run over the tokens of a page in order: nothing else changes a bit.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rows.h"
#include "team.h"

namespace baton {
namespace {

// Mirrored in kernels/ssm_states.py.
struct States {
    const void* tokens;  // of pages, what each of their tokens has left
    float* states;
    int64_t page, token, state;       // strides: of pages, of their tokens, of pages' states
    int64_t key, value;               // where in a row they begin
    int64_t heads, groups, key_dim, value_dim, page_size;
    int64_t bytes;
};

// Keys and values of one head in the first `count` tokens of a page.
template <class T>
struct Head {
    Rows keys, values;

    void read(const States& how, int64_t page, int64_t head, int64_t count) {
        keys.shape(count, how.key_dim);
        values.shape(count, how.value_dim);
        const int64_t group = head / (how.heads / how.groups);
        for (int64_t j = 0; j < count; j++) {
            const T* row = static_cast<const T*>(how.tokens) + page * how.page + j * how.token;
            keys.read(j, row + how.key + group * how.key_dim, how.key_dim);
            values.read(j, row + how.value + head * how.value_dim, how.value_dim);
        }
    }
};

// e^(to - from[j]) * weight[j] of the first `count` tokens.
void decayed(const float* from, const float* weight, float to, int64_t count, float* out) {
    for (int64_t j = 0; j < count; j += kWidth) {
        const int some = static_cast<int>(count - j);
        const Vec left = exp(sub(set1(to), load_some(from + j, some)));
        store_some(out + j, mul(left, load_some(weight + j, some)), some);
    }
}

// The state of a page after its last token, of one head: a state [key_dim, value_dim] to another.
template <class T>
void carry(const States& how, int64_t before, int64_t head, const float* faded,
           const float* weight, float* begun) {
    static thread_local Head<T> kept;
    static thread_local std::vector<float> counts;
    const int64_t size = how.page_size, dim = how.value_dim;
    kept.read(how, before, head, size);
    counts.resize(size);
    decayed(faded, weight, faded[size - 1], size, counts.data());
    for (int64_t j = 0; j < size; j++)
        for (int64_t p = 0; p < kept.values.width(); p += kWidth)
            store(kept.values[j] + p, mul(load(kept.values[j] + p), set1(counts[j])));
    const Vec left = set1(exp_of(faded[size - 1]));
    const float* state = how.states + before * how.state + head * how.key_dim * dim;
    begun += head * how.key_dim * dim;
    for (int64_t n = 0; n < how.key_dim; n += kTogether) {
        const int rows = static_cast<int>(std::min<int64_t>(kTogether, how.key_dim - n));
        for (int64_t p = 0; p < dim; p += kWidth) {
            const int some = static_cast<int>(dim - p);
            Vec sums[kTogether];
            for (int r = 0; r < rows; r++)
                sums[r] = mul(left, load_some(state + (n + r) * dim + p, some));
            for (int64_t j = 0; j < size; j++) {
                const Vec value = load(kept.values[j] + p);
                for (int r = 0; r < rows; r++)
                    sums[r] = fma(set1(kept.keys[j][n + r]), value, sums[r]);
            }
            for (int r = 0; r < rows; r++) store_some(begun + (n + r) * dim + p, sums[r], some);
        }
    }
}

// What `Count` queries, tokens `first` and following of a page, read of the state and of the tokens
// up to each, `Wide` vectors of it at a time. A query's sums are the same beside any others.
template <int Count, int Wide>
void read_some(const States& how, const Rows& keys, const Rows& values, const Rows& queries,
               int64_t query, int64_t first, const float* state, const float* faded,
               const float* weight, float* out, int64_t stride) {
    static thread_local std::vector<float> counts;
    const int64_t dim = how.value_dim;
    counts.resize(Count * how.page_size);
    float left[Count];
    for (int i = 0; i < Count; i++) {
        float* mine = counts.data() + i * how.page_size;
        left[i] = exp_of(faded[first + i]);
        decayed(faded, weight, faded[first + i], first + i + 1, mine);
        for (int64_t j = 0; j <= first + i; j++)
            mine[j] = mine[j] * dot(queries[query + i], keys[j], keys.width());
    }
    for (int64_t p = 0; p < dim; p += Wide * kWidth) {
        int some[Wide];
        for (int v = 0; v < Wide; v++)
            some[v] = static_cast<int>(std::max<int64_t>(0, dim - p - v * kWidth));
        Vec sums[Count][Wide];
        for (int i = 0; i < Count; i++)
            for (int v = 0; v < Wide; v++) sums[i][v] = zero();
        for (int64_t n = 0; n < how.key_dim; n++) {
            for (int v = 0; v < Wide; v++) {
                const Vec row = load_some(state + n * dim + p + v * kWidth, some[v]);
                for (int i = 0; i < Count; i++)
                    sums[i][v] = fma(set1(queries[query + i][n]), row, sums[i][v]);
            }
        }
        for (int i = 0; i < Count; i++) {
            const float* mine = counts.data() + i * how.page_size;
            for (int v = 0; v < Wide && some[v] > 0; v++) {
                const int64_t at = p + v * kWidth;
                Vec total = mul(sums[i][v], set1(left[i]));
                for (int64_t j = 0; j <= first + i; j++)
                    total = fma(set1(mine[j]), load(values[j] + at), total);
                store_some(out + i * stride + at, total, some[v]);
            }
        }
    }
}

// What the tokens of one block and head read: `count` queries from token `first` of the page on.
template <class T>
void read(const States& how, int64_t page, int64_t head, int64_t first, int64_t count,
          const float* query, const float* faded, const float* weight, float* out) {
    static thread_local Head<T> kept;
    static thread_local Rows queries;
    kept.read(how, page, head, first + count);
    queries.shape(count, how.key_dim);
    const int64_t group = head / (how.heads / how.groups);
    for (int64_t i = 0; i < count; i++)
        queries.read(i, query + (i * how.groups + group) * how.key_dim, how.key_dim);
    const float* state = how.states + page * how.state + head * how.key_dim * how.value_dim;
    const int64_t stride = how.heads * how.value_dim;
    out += head * how.value_dim;
    int64_t i = 0;
    for (; i + kTogether <= count; i += kTogether)
        read_some<kTogether, 2>(how, kept.keys, kept.values, queries, i, first + i, state, faded,
                             weight, out + i * stride, stride);
    for (; i < count; i++)
        read_some<1, 4>(how, kept.keys, kept.values, queries, i, first + i, state, faded, weight,
                     out + i * stride, stride);
}

// body(item, head) for all heads of all items, on several threads where that pays.
template <class Body>
void each_head(const States& how, int64_t items, int64_t tokens, const Body& body) {
    const int64_t work = tokens * how.heads * how.key_dim * how.value_dim;
    share(work >= kWorthThreads, items * how.heads, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++) body(task / how.heads, task % how.heads);
    }, Pieces::kUneven);
}

template <class T>
void carry_all(const States& how, int64_t count, const int64_t* before, const int64_t* begun,
               const float* faded, const float* weight) {
    each_head(how, count, count * how.page_size, [&](int64_t item, int64_t head) {
        const int64_t at = (item * how.heads + head) * how.page_size;
        carry<T>(how, before[item], head, faded + at, weight + at,
                 how.states + begun[item] * how.state);
    });
}

template <class T>
void read_all(const States& how, int64_t count, const int64_t* pages, const int64_t* begins,
              const int64_t* firsts, const float* query, const float* faded, const float* weight,
              float* out) {
    each_head(how, count, begins[count], [&](int64_t item, int64_t head) {
        const int64_t at = (item * how.heads + head) * how.page_size, begin = begins[item];
        read<T>(how, pages[item], head, firsts[item], begins[item + 1] - begin,
                query + begin * how.groups * how.key_dim, faded + at, weight + at,
                out + begin * how.heads * how.value_dim);
    });
}

}  // namespace
}  // namespace baton

// faded and weight [count, heads, page_size]; no page is both before and begun.
extern "C" void baton_carry(const baton::States* how, int64_t count, const int64_t* before,
                            const int64_t* begun, const float* faded, const float* weight) {
    if (how->bytes == 4)
        baton::carry_all<float>(*how, count, before, begun, faded, weight);
    else
        baton::carry_all<baton::Bf16>(*how, count, before, begun, faded, weight);
}

// begins [count + 1]: of each block its first query, and how many there are; firsts [count]: which
// token of its page that is; query [queries, groups, key_dim] and out [queries, heads, value_dim].
extern "C" void baton_read(const baton::States* how, int64_t count, const int64_t* pages,
                           const int64_t* begins, const int64_t* firsts, const float* query,
                           const float* faded, const float* weight, float* out) {
    if (how->bytes == 4)
        baton::read_all<float>(*how, count, pages, begins, firsts, query, faded, weight, out);
    else
        baton::read_all<baton::Bf16>(*how, count, pages, begins, firsts, query, faded, weight, out);
}
