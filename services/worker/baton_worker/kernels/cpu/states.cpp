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

    void read(const States& params, int64_t page, int64_t head, int64_t count) {
        keys.shape(count, params.key_dim);
        values.shape(count, params.value_dim);
        const int64_t group = head / (params.heads / params.groups);
        for (int64_t j = 0; j < count; j++) {
            const T* row =
                static_cast<const T*>(params.tokens) + page * params.page + j * params.token;
            keys.read(j, row + params.key + group * params.key_dim, params.key_dim);
            values.read(j, row + params.value + head * params.value_dim, params.value_dim);
        }
    }
};

// e^(to - from[j]) * weight[j] of the first `count` tokens.
void decayed(const float* from, const float* weight, float to, int64_t count, float* out) {
    for (int64_t j = 0; j < count; j += kWidth) {
        const int lanes = static_cast<int>(count - j);
        const Vec decay = exp(sub(set1(to), load_some(from + j, lanes)));
        store_some(out + j, mul(decay, load_some(weight + j, lanes)), lanes);
    }
}

// The state of a page after its last token, of one head: a state [key_dim, value_dim] to another.
template <class T>
void carry(const States& params, int64_t from_page, int64_t head, const float* log_decays,
           const float* weight, float* next_state) {
    static thread_local Head<T> rows;
    static thread_local std::vector<float> token_weights;
    const int64_t size = params.page_size, dim = params.value_dim;
    rows.read(params, from_page, head, size);
    token_weights.resize(size);
    decayed(log_decays, weight, log_decays[size - 1], size, token_weights.data());
    for (int64_t j = 0; j < size; j++)
        for (int64_t p = 0; p < rows.values.width(); p += kWidth)
            store(rows.values[j] + p, mul(load(rows.values[j] + p), set1(token_weights[j])));
    const Vec page_decay = set1(exp_of(log_decays[size - 1]));
    const float* state = params.states + from_page * params.state + head * params.key_dim * dim;
    next_state += head * params.key_dim * dim;
    for (int64_t n = 0; n < params.key_dim; n += kTogether) {
        const int together = static_cast<int>(std::min<int64_t>(kTogether, params.key_dim - n));
        for (int64_t p = 0; p < dim; p += kWidth) {
            const int lanes = static_cast<int>(dim - p);
            Vec sums[kTogether];
            for (int r = 0; r < together; r++)
                sums[r] = mul(page_decay, load_some(state + (n + r) * dim + p, lanes));
            for (int64_t j = 0; j < size; j++) {
                const Vec value = load(rows.values[j] + p);
                for (int r = 0; r < together; r++)
                    sums[r] = fma(set1(rows.keys[j][n + r]), value, sums[r]);
            }
            for (int r = 0; r < together; r++)
                store_some(next_state + (n + r) * dim + p, sums[r], lanes);
        }
    }
}

// What `Count` queries, tokens `first` and following of a page, read of the state and of the tokens
// up to each, `Wide` vectors of it at a time. A query's sums are the same beside any others.
template <int Count, int Wide>
void read_queries(const States& params, const Rows& keys, const Rows& values, const Rows& queries,
                  int64_t query, int64_t first, const float* state, const float* log_decays,
                  const float* weight, float* out, int64_t stride) {
    static thread_local std::vector<float> token_weights;
    const int64_t dim = params.value_dim;
    token_weights.resize(Count * params.page_size);
    float state_decay[Count];
    for (int i = 0; i < Count; i++) {
        float* scores = token_weights.data() + i * params.page_size;
        state_decay[i] = exp_of(log_decays[first + i]);
        decayed(log_decays, weight, log_decays[first + i], first + i + 1, scores);
        for (int64_t j = 0; j <= first + i; j++)
            scores[j] = scores[j] * dot(queries[query + i], keys[j], keys.width());
    }
    for (int64_t p = 0; p < dim; p += Wide * kWidth) {
        int lanes[Wide];
        for (int v = 0; v < Wide; v++)
            lanes[v] = static_cast<int>(std::max<int64_t>(0, dim - p - v * kWidth));
        Vec sums[Count][Wide];
        for (int i = 0; i < Count; i++)
            for (int v = 0; v < Wide; v++) sums[i][v] = zero();
        for (int64_t n = 0; n < params.key_dim; n++) {
            for (int v = 0; v < Wide; v++) {
                const Vec row = load_some(state + n * dim + p + v * kWidth, lanes[v]);
                for (int i = 0; i < Count; i++)
                    sums[i][v] = fma(set1(queries[query + i][n]), row, sums[i][v]);
            }
        }
        for (int i = 0; i < Count; i++) {
            const float* scores = token_weights.data() + i * params.page_size;
            for (int v = 0; v < Wide && lanes[v] > 0; v++) {
                const int64_t at = p + v * kWidth;
                Vec total = mul(sums[i][v], set1(state_decay[i]));
                for (int64_t j = 0; j <= first + i; j++)
                    total = fma(set1(scores[j]), load(values[j] + at), total);
                store_some(out + i * stride + at, total, lanes[v]);
            }
        }
    }
}

// What the tokens of one block and head read: `count` queries from token `first` of the page on.
template <class T>
void read(const States& params, int64_t page, int64_t head, int64_t first, int64_t count,
          const float* query, const float* log_decays, const float* weight, float* out) {
    static thread_local Head<T> rows;
    static thread_local Rows queries;
    rows.read(params, page, head, first + count);
    queries.shape(count, params.key_dim);
    const int64_t group = head / (params.heads / params.groups);
    for (int64_t i = 0; i < count; i++)
        queries.read(i, query + (i * params.groups + group) * params.key_dim, params.key_dim);
    const float* state =
        params.states + page * params.state + head * params.key_dim * params.value_dim;
    const int64_t stride = params.heads * params.value_dim;
    out += head * params.value_dim;
    int64_t i = 0;
    for (; i + kTogether <= count; i += kTogether)
        read_queries<kTogether, 2>(params, rows.keys, rows.values, queries, i, first + i, state,
                                   log_decays, weight, out + i * stride, stride);
    for (; i < count; i++)
        read_queries<1, 4>(params, rows.keys, rows.values, queries, i, first + i, state,
                           log_decays, weight, out + i * stride, stride);
}

// body(item, head) for all heads of all items, on several threads where that pays.
template <class Body>
void each_head(const States& params, int64_t items, int64_t tokens, const Body& body) {
    const int64_t work = tokens * params.heads * params.key_dim * params.value_dim;
    share(work >= kWorthThreads, items * params.heads, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++)
            body(task / params.heads, task % params.heads);
    }, Pieces::kUneven);
}

template <class T>
void carry_all(const States& params, int64_t count, const int64_t* from_page,
               const int64_t* to_page, const float* log_decays, const float* weight) {
    each_head(params, count, count * params.page_size, [&](int64_t item, int64_t head) {
        const int64_t at = (item * params.heads + head) * params.page_size;
        carry<T>(params, from_page[item], head, log_decays + at, weight + at,
                 params.states + to_page[item] * params.state);
    });
}

template <class T>
void read_all(const States& params, int64_t count, const int64_t* pages, const int64_t* begins,
              const int64_t* firsts, const float* query, const float* log_decays,
              const float* weight, float* out) {
    each_head(params, count, begins[count], [&](int64_t item, int64_t head) {
        const int64_t at = (item * params.heads + head) * params.page_size, begin = begins[item];
        read<T>(params, pages[item], head, firsts[item], begins[item + 1] - begin,
                query + begin * params.groups * params.key_dim, log_decays + at, weight + at,
                out + begin * params.heads * params.value_dim);
    });
}

}  // namespace
}  // namespace baton

// log_decays and weight [count, heads, page_size]; no page is both from_page and to_page.
extern "C" void baton_carry(const baton::States* params, int64_t count, const int64_t* from_page,
                            const int64_t* to_page, const float* log_decays, const float* weight) {
    if (params->bytes == 4)
        baton::carry_all<float>(*params, count, from_page, to_page, log_decays, weight);
    else
        baton::carry_all<baton::Bf16>(*params, count, from_page, to_page, log_decays, weight);
}

// begins [count + 1]: of each block its first query, and how many there are; firsts [count]: which
// token of its page that is; query [queries, groups, key_dim] and out [queries, heads, value_dim].
extern "C" void baton_read(const baton::States* params, int64_t count, const int64_t* pages,
                           const int64_t* begins, const int64_t* firsts, const float* query,
                           const float* log_decays, const float* weight, float* out) {
    if (params->bytes == 4)
        baton::read_all<float>(*params, count, pages, begins, firsts, query, log_decays, weight,
                               out);
    else
        baton::read_all<baton::Bf16>(*params, count, pages, begins, firsts, query, log_decays,
                                     weight, out);
}
