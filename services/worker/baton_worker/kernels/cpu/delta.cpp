// Gated delta nets over pages that keep keys and values, each with the state that it begins in: see
// kernels/delta.py.
//
// One thread walks one head of one sequence, page by page and within them by blocks of tokens. What
// the tokens of a block add to the state comes out of one triangular system (Yang et al. 2024,
// arXiv:2406.06484 and, with decays, arXiv:2412.06464). Every sum runs in one order, over what is
// not later, so where a text is cut changes no bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "chains.h"
#include "rows.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kBlockTokens = 16;
constexpr float kNormFloor = 1e-6f;  // added to the square of a length

// Mirrored in kernels/recurrent/delta.py.
struct Layout {
    const void* tokens;  // of pages, what each of their tokens has left
    float* states;
    int64_t page, token, state;  // strides: of pages, of their tokens, of pages' states
    int64_t key, value;          // where in a row they begin
    int64_t heads, key_heads, key_dim, value_dim;
    int64_t channels;  // of a decay: 1, or key_dim
    int64_t page_size, bytes;
    int64_t query_stride, query_bytes;
};

struct Delta : Layout {
    const float* strength;  // [entries, page_size, heads]
    const float* decay;     // [entries, page_size, heads, channels], logarithms
    const void* query;      // [queries, query_stride], of which key_heads * key_dim are read
    float* out;             // [queries, heads, value_dim]
};

// Mirrored in kernels/recurrent/delta.py.
struct Gates {
    const void* tokens;       // of pages, what each of their tokens has left
    const float *log_rates;   // [heads]
    const float *bias;        // [heads * channels]
    int64_t page, token, at;  // strides of pages and of their tokens; where in a row gates begin
    int64_t heads, channels, page_size, bytes;
    float strongest;          // strength
};

// Rows, `Count` at a time, times a state [key_dim, value_dim], `Wide` vectors of it at a time. A
// row's sums are the same beside any others.
template <int Count, int Wide>
void multiply_rows(const Rows& x, int64_t row, const float* state, const Delta& params, Rows& out) {
    const int64_t dim = params.value_dim;
    for (int64_t p = 0; p < dim; p += Wide * kWidth) {
        int lanes[Wide];
        for (int v = 0; v < Wide; v++)
            lanes[v] = static_cast<int>(std::max<int64_t>(0, dim - p - v * kWidth));
        Vec sums[Count][Wide];
        for (int i = 0; i < Count; i++)
            for (int v = 0; v < Wide; v++) sums[i][v] = zero();
        for (int64_t n = 0; n < params.key_dim; n++) {
            for (int v = 0; v < Wide; v++) {
                const Vec state_row = load_some(state + n * dim + p + v * kWidth, lanes[v]);
                for (int i = 0; i < Count; i++)
                    sums[i][v] = fma(set1(x[row + i][n]), state_row, sums[i][v]);
            }
        }
        for (int i = 0; i < Count; i++)
            for (int v = 0; v < Wide && lanes[v] > 0; v++)
                store(out[row + i] + p + v * kWidth, sums[i][v]);
    }
}

void multiply(const Rows& x, int64_t count, const float* state, const Delta& params, Rows& out) {
    int64_t i = 0;
    for (; i + kTogether <= count; i += kTogether)
        multiply_rows<kTogether, 2>(x, i, state, params, out);
    for (; i < count; i++) multiply_rows<1, 4>(x, i, state, params, out);
}

// Some tokens of one head between two states, and the queries of the new ones.
template <class T>
class Block {
  public:
    // Tokens `begin` to `end` of an entry of `chains`; those from `first_new` on have queries.
    void read(const Delta& params, int64_t page, int64_t entry, int64_t head, int64_t begin,
              int64_t end, int64_t first_query, int64_t first_new) {
        head_ = head, begin_ = begin, count_ = end - begin;
        first_ = std::max(first_new, begin) - begin;
        shape(params);
        const int64_t key_head = head / (params.heads / params.key_heads);
        for (int64_t t = 0; t < count_; t++) {
            const T* row = static_cast<const T*>(params.tokens) + page * params.page +
                           (begin + t) * params.token;
            keys_.read(t, row + params.key + key_head * params.key_dim, params.key_dim);
            normalise(keys_[t], 1.0f);
            updates_.read(t, row + params.value + head * params.value_dim, params.value_dim);
            read_dynamics(params, entry, t);
        }
        const float length = 1.0f / std::sqrt(static_cast<float>(params.key_dim));
        for (int64_t t = first_; t < count_; t++) {
            const int64_t row = first_query + begin + t - first_new;
            read_row(queries_, t - first_, params.query, params.query_bytes,
                     row * params.query_stride + key_head * params.key_dim, params.key_dim);
            normalise(queries_[t - first_], length);
        }
    }

    // Find what each token adds, and write what queries find; `out` is that of token `first_`.
    void solve(const Delta& params, const float* state, float* out) {
        const int64_t num_queries = std::max<int64_t>(0, count_ - first_);
        for (int64_t t = 0; t < count_; t++)
            decay_row(params, keys_[t], log_decays_[t], nullptr, decayed_[t]);
        for (int64_t i = 0; i < num_queries; i++)
            decay_row(params, queries_[i], log_decays_[first_ + i], nullptr, decayed_[count_ + i]);
        multiply(decayed_, count_ + num_queries, state, params, sums_);
        for (int64_t t = 0; t < count_; t++) add_token(params, t);
        for (int64_t i = 0; i < num_queries; i++)
            read_query(params, i, out + i * params.heads * params.value_dim);
    }

    // The state behind the last token, which may take the place of the one before.
    void advance_state(const Delta& params, const float* state, float* next) {
        const int64_t dim = params.value_dim;
        const float* end = log_decays_[count_ - 1];
        for (int64_t t = 0; t < count_; t++)
            decay_row(params, keys_[t], end, log_decays_[t], decayed_[t]);
        std::fill(state_decay_.begin(), state_decay_.end(), 1.0f);
        decay_row(params, state_decay_.data(), end, nullptr, state_decay_.data());
        for (int64_t n = 0; n < params.key_dim; n += kTogether) {
            const int rows = static_cast<int>(std::min<int64_t>(kTogether, params.key_dim - n));
            for (int64_t p = 0; p < dim; p += kWidth) {
                const int lanes = static_cast<int>(dim - p);
                Vec sums[kTogether];
                for (int r = 0; r < rows; r++)
                    sums[r] = mul(set1(state_decay_[n + r]),
                                  load_some(state + (n + r) * dim + p, lanes));
                for (int64_t t = 0; t < count_; t++) {
                    const Vec added = load(updates_[t] + p);
                    for (int r = 0; r < rows; r++)
                        sums[r] = fma(set1(decayed_[t][n + r]), added, sums[r]);
                }
                for (int r = 0; r < rows; r++) store_some(next + (n + r) * dim + p, sums[r], lanes);
            }
        }
    }

  private:
    void shape(const Delta& params) {
        const int64_t num_queries = std::max<int64_t>(0, count_ - first_);
        keys_.shape(count_, params.key_dim);
        queries_.shape(num_queries, params.key_dim);
        decayed_.shape(count_ + num_queries, params.key_dim);
        log_decays_.shape(count_, params.channels);
        updates_.shape(count_, params.value_dim);
        sums_.shape(count_ + num_queries, params.value_dim);
        state_decay_.resize(up(params.key_dim));
    }

    void normalise(float* x, float length) const {
        const Vec factor = set1(length / std::sqrt(dot(x, x, keys_.width()) + kNormFloor));
        for (int64_t i = 0; i < keys_.width(); i += kWidth) store(x + i, mul(load(x + i), factor));
    }

    // The strength of token `t`, and the decay of the state from the first token to it.
    void read_dynamics(const Delta& params, int64_t entry, int64_t t) {
        const int64_t at = (entry * params.page_size + begin_ + t) * params.heads + head_;
        strength_[t] = params.strength[at];
        log_decays_.read(t, params.decay + at * params.channels, params.channels);
        for (int64_t i = 0; t > 0 && i < log_decays_.width(); i += kWidth)
            store(log_decays_[t] + i, add(load(log_decays_[t - 1] + i), load(log_decays_[t] + i)));
    }

    // x times the decay from one token to another: e^(to - from), per channel.
    void decay_row(const Delta& params, const float* x, const float* to, const float* from,
              float* out) const {
        if (params.channels == 1) {
            const Vec decay = set1(exp_of(from == nullptr ? to[0] : to[0] - from[0]));
            for (int64_t i = 0; i < keys_.width(); i += kWidth)
                store(out + i, mul(load(x + i), decay));
            return;
        }
        for (int64_t i = 0; i < keys_.width(); i += kWidth) {
            const Vec log_decay =
                from == nullptr ? load(to + i) : sub(load(to + i), load(from + i));
            store(out + i, mul(load(x + i), exp(log_decay)));
        }
    }

    // Scores of a key or query x at token `t` with the keys of the first `count` tokens, times the
    // decay since those.
    void score(const Delta& params, const float* x, int64_t t, int64_t count, float* out) const {
        params.channels == 1 ? score_by_head(x, t, count, out) : score_by_channel(x, t, count, out);
    }

    void score_by_head(const float* x, int64_t t, int64_t count, float* out) const {
        alignas(64) float log_decay[kBlockTokens] = {};
        for (int64_t j = 0; j < count; j++) {
            out[j] = dot(x, keys_[j], keys_.width());
            log_decay[j] = log_decays_[t][0] - log_decays_[j][0];
        }
        for (int64_t j = 0; j < count; j += kWidth)
            store(out + j, mul(load(out + j), exp(load(log_decay + j))));
    }

    void score_by_channel(const float* x, int64_t t, int64_t count, float* out) const {
        for (int64_t j = 0; j < count; j++) {
            Vec total = zero();
            for (int64_t i = 0; i < keys_.width(); i += kWidth) {
                const Vec decay = exp(sub(load(log_decays_[t] + i), load(log_decays_[j] + i)));
                total = fma(mul(load(x + i), decay), load(keys_[j] + i), total);
            }
            out[j] = sum(total);
        }
    }

    // b (v - k state - what those before it have added).
    void add_token(const Delta& params, int64_t t) {
        score(params, keys_[t], t, t, scores_);
        const Vec strength = set1(strength_[t]);
        for (int64_t p = 0; p < updates_.width(); p += kWidth) {
            Vec update = sub(load(updates_[t] + p), load(sums_[t] + p));
            for (int64_t j = 0; j < t; j++)
                update = fma(set1(-scores_[j]), load(updates_[j] + p), update);
            store(updates_[t] + p, mul(strength, update));
        }
    }

    void read_query(const Delta& params, int64_t i, float* out) {
        const int64_t t = first_ + i;
        score(params, queries_[i], t, t + 1, scores_);
        for (int64_t p = 0; p < params.value_dim; p += kWidth) {
            Vec output = load(sums_[count_ + i] + p);
            for (int64_t j = 0; j <= t; j++)
                output = fma(set1(scores_[j]), load(updates_[j] + p), output);
            store_some(out + p, output, static_cast<int>(params.value_dim - p));
        }
    }

    int64_t head_ = 0, begin_ = 0, count_ = 0, first_ = 0;
    Rows keys_, queries_, log_decays_;
    Rows decayed_;  // keys, then queries, times their decays
    Rows sums_;   // of these with the state
    Rows updates_;  // values, and then what tokens add
    std::vector<float> state_decay_;
    float strength_[kBlockTokens];
    alignas(64) float scores_[kBlockTokens];
};

// One head of one sequence.
template <class T>
void scan_head(const Delta& params, const Chains& chains, int64_t row, int64_t head) {
    static thread_local Block<T> block;
    static thread_local std::vector<float> block_state;
    const int64_t size = params.key_dim * params.value_dim, last = chains.stops[row] - 1;
    block_state.resize(size);
    const auto state_of = [&](int64_t entry) {
        return params.states + chains.pages[entry] * params.state + head * size;
    };
    for (int64_t entry = chains.starts[row]; entry <= last; entry++) {
        const int64_t first = chains.firsts[entry], begin = chains.begins[entry];
        const int64_t end = first + chains.begins[entry + 1] - begin;
        const float* state = state_of(entry);
        for (int64_t t = 0; t < end; t += kBlockTokens) {
            const int64_t block_end = std::min(t + kBlockTokens, end);
            block.read(params, chains.pages[entry], entry, head, t, block_end, begin, first);
            const int64_t first_query = begin + std::max(t, first) - first;
            const int64_t out_row = first_query * params.heads + head;
            block.solve(params, state, params.out + out_row * params.value_dim);
            if (block_end < end) {
                block.advance_state(params, state, block_state.data());
                state = block_state.data();
            } else if (entry < last) {
                block.advance_state(params, state, state_of(entry + 1));
            }
        }
    }
}

template <class T>
void scan_all(const Delta& params, const Chains& chains, int64_t rows) {
    if (!rows) return;
    const int64_t tokens = (chains.stops[rows - 1] - chains.starts[0]) * params.page_size;
    const int64_t work = tokens * params.heads * params.key_dim * params.value_dim;
    share(work >= kWorthThreads, rows * params.heads, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++)
            scan_head<T>(params, chains, task / params.heads, task % params.heads);
    }, Pieces::kUneven);
}

// The strengths and decays of the first `count` tokens of an entry of `chains`.
template <class T>
void read_gates(const Gates& params, int64_t page, int64_t entry, int64_t count,
                const float* rates, float* strength, float* decay) {
    const int64_t decays = params.heads * params.channels;
    for (int64_t t = 0; t < count; t++) {
        const T* row = static_cast<const T*>(params.tokens) + page * params.page +
                       t * params.token + params.at;
        const int64_t token = entry * params.page_size + t;
        for (int64_t h = 0; h < params.heads; h += kWidth) {
            const int lanes = static_cast<int>(params.heads - h);
            const Vec opened = sigmoid(load_some(row + h, lanes));
            store_some(strength + token * params.heads + h,
                       mul(set1(params.strongest), opened), lanes);
        }
        for (int64_t c = 0; c < decays; c += kWidth) {
            const int lanes = static_cast<int>(decays - c);
            const Vec raw = load_some(row + params.heads + c, lanes);
            const Vec step = softplus(add(raw, load_some(params.bias + c, lanes)));
            store_some(decay + token * decays + c, mul(load_some(rates + c, lanes), step), lanes);
        }
    }
}

template <class T>
void read_all_gates(const Gates& params, const Chains& chains, int64_t rows, float* strength,
                    float* decay) {
    if (!rows) return;
    const int64_t decays = params.heads * params.channels;
    std::vector<float> rates(decays);  // negative: of logarithms
    for (int64_t c = 0; c < decays; c++) rates[c] = -exp_of(params.log_rates[c / params.channels]);
    const int64_t first = chains.starts[0], entries = chains.stops[rows - 1] - first;
    const bool worth = entries * params.page_size * decays >= kWorthThreads;
    share(worth, entries, [&](int64_t begin, int64_t end) {
        for (int64_t entry = first + begin; entry < first + end; entry++) {
            if (chains.firsts[entry] < 0) continue;  // of no row
            const int64_t count =
                chains.firsts[entry] + chains.begins[entry + 1] - chains.begins[entry];
            read_gates<T>(params, chains.pages[entry], entry, count, rates.data(), strength,
                          decay);
        }
    });
}

}  // namespace
}  // namespace baton

// Each sequence of `chains`: what its queries find, and the states of all its pages but the first.
extern "C" void baton_delta(const baton::Layout* layout, int64_t rows, const int64_t* starts,
                            const int64_t* stops, const int64_t* pages, const int64_t* firsts,
                            const int64_t* begins, const float* strength, const float* decay,
                            const void* query, float* out) {
    const baton::Chains chains{starts, stops, pages, firsts, begins};
    const baton::Delta params{*layout, strength, decay, query, out};
    if (params.bytes == 4)
        baton::scan_all<float>(params, chains, rows);
    else
        baton::scan_all<baton::Bf16>(params, chains, rows);
}

// strength [entries, page_size, heads] and decay [entries, page_size, heads, channels] of tokens that
// there are.
extern "C" void baton_delta_gates(const baton::Gates* params, int64_t rows, const int64_t* starts,
                                  const int64_t* stops, const int64_t* pages,
                                  const int64_t* firsts, const int64_t* begins, float* strength,
                                  float* decay) {
    const baton::Chains chains{starts, stops, pages, firsts, begins};
    if (params->bytes == 4)
        baton::read_all_gates<float>(*params, chains, rows, strength, decay);
    else
        baton::read_all_gates<baton::Bf16>(*params, chains, rows, strength, decay);
}
