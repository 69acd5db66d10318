// What tokens add to a state, and what they read of it: see kernels/ssm_states.py.
//
// A state is a matrix, a row for every channel of a key. Rows of keys and values are those of one
// page, so sums run over the tokens of a page in order: nothing else changes a bit.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "chains.h"
#include "rows.h"
#include "team.h"

namespace baton {
namespace {

// Mirrored in kernels/recurrent/ssm_states.py.
struct States {
    const void* tokens;  // of pages, what each of their tokens has left
    float* states;
    int64_t page, token, state;       // strides: of pages, of their tokens, of pages' states
    int64_t key, value;               // where in a row they begin
    int64_t heads, groups, key_dim, value_dim, page_size;
    int64_t bytes;
    int64_t query_stride, query_bytes;
};

// Of a step; entries are those of `chains`.
struct Step {
    const void* query;        // [queries, query_stride], of which groups * key_dim are read
    const float* log_decays;  // [entries, heads, page_size]
    const float* weight;      // [entries, heads, page_size]
    float* out;               // [queries, heads, value_dim]
};

// Mirrored in kernels/recurrent/ssm_states.py.
struct Fading {
    const void* tokens;      // of pages, what each of their tokens has left
    const float* log_rates;  // [heads]
    const float* bias;       // [heads]
    int64_t page, token, at;  // strides of pages and of their tokens; where in a row steps begin
    int64_t heads, page_size, bytes;
    float least, most;  // of a step
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
          const void* query, int64_t first_query, const float* log_decays, const float* weight,
          float* out) {
    static thread_local Head<T> rows;
    static thread_local Rows queries;
    rows.read(params, page, head, first + count);
    queries.shape(count, params.key_dim);
    const int64_t group = head / (params.heads / params.groups);
    for (int64_t i = 0; i < count; i++)
        read_row(queries, i, query, params.query_bytes,
                 (first_query + i) * params.query_stride + group * params.key_dim, params.key_dim);
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

// One head of one sequence.
template <class T>
void walk(const States& params, const Chains& chains, const Step& step, int64_t row,
          int64_t head) {
    const int64_t last = chains.stops[row] - 1, width = params.heads * params.value_dim;
    for (int64_t entry = chains.starts[row]; entry <= last; entry++) {
        const int64_t page = chains.pages[entry], begin = chains.begins[entry];
        const int64_t count = chains.begins[entry + 1] - begin;
        const int64_t at = (entry * params.heads + head) * params.page_size;
        const float *log_decays = step.log_decays + at, *weight = step.weight + at;
        if (count)
            read<T>(params, page, head, chains.firsts[entry], count, step.query, begin, log_decays,
                    weight, step.out + begin * width);
        if (entry < last)
            carry<T>(params, page, head, log_decays, weight,
                     params.states + chains.pages[entry + 1] * params.state);
    }
}

template <class T>
void walk_all(const States& params, const Chains& chains, int64_t rows, const Step& step) {
    if (!rows) return;
    const int64_t entries = chains.stops[rows - 1] - chains.starts[0];
    const int64_t work = entries * params.heads * params.key_dim * params.value_dim;
    share(work >= kWorthThreads, rows * params.heads, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++)
            walk<T>(params, chains, step, task / params.heads, task % params.heads);
    }, Pieces::kUneven);
}

// The decays and weights of the first `count` tokens of an entry of `chains`.
template <class T>
void read_fading(const Fading& params, int64_t page, int64_t entry, int64_t count,
                 float* log_decays, float* weight) {
    for (int64_t h = 0; h < params.heads; h += kWidth) {
        const int lanes = static_cast<int>(params.heads - h);
        const Vec rate = exp(load_some(params.log_rates + h, lanes));
        const Vec bias = load_some(params.bias + h, lanes);
        Vec total = zero();
        for (int64_t t = 0; t < count; t++) {
            const T* row = static_cast<const T*>(params.tokens) + page * params.page +
                           t * params.token + params.at;
            const Vec raw = softplus(add(load_some(row + h, lanes), bias));
            const Vec step = max(set1(params.least), min(set1(params.most), raw));
            total = sub(total, mul(step, rate));
            float steps[kWidth], totals[kWidth];
            store(steps, step), store(totals, total);
            for (int i = 0; i < std::min(lanes, kWidth); i++) {
                const int64_t to = (entry * params.heads + h + i) * params.page_size + t;
                weight[to] = steps[i], log_decays[to] = totals[i];
            }
        }
    }
}

template <class T>
void read_all_fading(const Fading& params, const Chains& chains, int64_t rows, float* log_decays,
                     float* weight) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t entry = chains.starts[row]; entry < chains.stops[row]; entry++) {
            const int64_t count =
                chains.firsts[entry] + chains.begins[entry + 1] - chains.begins[entry];
            read_fading<T>(params, chains.pages[entry], entry, count, log_decays, weight);
        }
    }
}

// Add x [rows, stride] times the scale of each head to y [rows, heads * dim].
template <class T>
void add_scaled(const T* x, int64_t stride, const float* scales, int64_t heads, int64_t dim,
                int64_t rows, float* y) {
    // Heads of one channel have their scales side by side.
    const int64_t parts = dim == 1 ? 1 : heads, width = dim == 1 ? heads : dim;
    share(rows * heads * dim >= kWorthThreads, rows, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin * parts; part < end * parts; part++) {
            const T* from = x + part / parts * stride + part % parts * width;
            float* to = y + part * width;
            for (int64_t i = 0; i < width; i += kWidth) {
                const int lanes = static_cast<int>(width - i);
                const Vec scale =
                    dim == 1 ? load_some(scales + i, lanes) : set1(scales[part % parts]);
                const Vec scaled = mul(load_some(from + i, lanes), scale);
                store_some(to + i, add(load_some(to + i, lanes), scaled), lanes);
            }
        }
    });
}

}  // namespace
}  // namespace baton

// Each sequence of `chains`: what its queries read, and the states of all its pages but the first.
extern "C" void baton_states(const baton::States* params, int64_t rows, const int64_t* starts,
                             const int64_t* stops, const int64_t* pages, const int64_t* firsts,
                             const int64_t* begins, const void* query, const float* log_decays,
                             const float* weight, float* out) {
    const baton::Chains chains{starts, stops, pages, firsts, begins};
    const baton::Step step{query, log_decays, weight, out};
    if (params->bytes == 4)
        baton::walk_all<float>(*params, chains, rows, step);
    else
        baton::walk_all<baton::Bf16>(*params, chains, rows, step);
}

// log_decays and weight [entries, heads, page_size] of tokens that there are.
extern "C" void baton_fading(const baton::Fading* params, int64_t rows, const int64_t* starts,
                             const int64_t* stops, const int64_t* pages, const int64_t* firsts,
                             const int64_t* begins, float* log_decays, float* weight) {
    const baton::Chains chains{starts, stops, pages, firsts, begins};
    if (params->bytes == 4)
        baton::read_all_fading<float>(*params, chains, rows, log_decays, weight);
    else
        baton::read_all_fading<baton::Bf16>(*params, chains, rows, log_decays, weight);
}

// x: `bytes` each, 2 is bfloat16 and 4 is float.
extern "C" void baton_add_scaled(const void* x, int64_t bytes, int64_t stride,
                                 const float* scales, int64_t heads, int64_t dim, int64_t rows,
                                 float* y) {
    if (bytes == 4)
        baton::add_scaled(static_cast<const float*>(x), stride, scales, heads, dim, rows, y);
    else
        baton::add_scaled(static_cast<const baton::Bf16*>(x), stride, scales, heads, dim, rows, y);
}
