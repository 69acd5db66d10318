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

constexpr int64_t kBlock = 16;   // tokens
constexpr float kLeast = 1e-6f;  // added to the square of a length

// Mirrored in kernels/delta.py.
struct Delta {
    const void* tokens;     // of pages, what each of their tokens has left
    float* states;
    const float* strength;  // [entries, page_size, heads]
    const float* decay;     // [entries, page_size, heads, channels], logarithms
    const float* query;     // [queries, key_heads, key_dim]
    float* out;             // [queries, heads, value_dim]
    int64_t page, token, state;  // strides: of pages, of their tokens, of pages' states
    int64_t key, value;          // where in a row they begin
    int64_t heads, key_heads, key_dim, value_dim;
    int64_t channels;  // of a decay: 1, or key_dim
    int64_t page_size, bytes;
};

// Rows, `Count` at a time, times a state [key_dim, value_dim], `Wide` vectors of it at a time. A
// row's sums are the same beside any others.
template <int Count, int Wide>
void multiply_some(const Rows& x, int64_t row, const float* state, const Delta& how, Rows& out) {
    const int64_t dim = how.value_dim;
    for (int64_t p = 0; p < dim; p += Wide * kWidth) {
        int some[Wide];
        for (int v = 0; v < Wide; v++)
            some[v] = static_cast<int>(std::max<int64_t>(0, dim - p - v * kWidth));
        Vec sums[Count][Wide];
        for (int i = 0; i < Count; i++)
            for (int v = 0; v < Wide; v++) sums[i][v] = zero();
        for (int64_t n = 0; n < how.key_dim; n++) {
            for (int v = 0; v < Wide; v++) {
                const Vec found = load_some(state + n * dim + p + v * kWidth, some[v]);
                for (int i = 0; i < Count; i++)
                    sums[i][v] = fma(set1(x[row + i][n]), found, sums[i][v]);
            }
        }
        for (int i = 0; i < Count; i++)
            for (int v = 0; v < Wide && some[v] > 0; v++)
                store(out[row + i] + p + v * kWidth, sums[i][v]);
    }
}

void multiply(const Rows& x, int64_t count, const float* state, const Delta& how, Rows& out) {
    int64_t i = 0;
    for (; i + kTogether <= count; i += kTogether)
        multiply_some<kTogether, 2>(x, i, state, how, out);
    for (; i < count; i++) multiply_some<1, 4>(x, i, state, how, out);
}

// Some tokens of one head between two states, and what is asked behind them.
template <class T>
class Block {
  public:
    // Tokens `begin` to `end` of an entry of `chains`; queries of those from `asked` on.
    void read(const Delta& how, int64_t page, int64_t entry, int64_t head, int64_t begin,
              int64_t end, const float* query, int64_t asked) {
        head_ = head, begin_ = begin, count_ = end - begin;
        first_ = std::max(asked, begin) - begin;
        shape(how);
        const int64_t key_head = head / (how.heads / how.key_heads);
        for (int64_t t = 0; t < count_; t++) {
            const T* row = static_cast<const T*>(how.tokens) + page * how.page +
                           (begin + t) * how.token;
            keys_.read(t, row + how.key + key_head * how.key_dim, how.key_dim);
            to_length(keys_[t], 1.0f);
            added_.read(t, row + how.value + head * how.value_dim, how.value_dim);
            read_dynamics(how, entry, t);
        }
        const float length = 1.0f / std::sqrt(static_cast<float>(how.key_dim));
        for (int64_t t = first_; t < count_; t++) {
            const int64_t number = begin + t - asked;
            const float* from = query + (number * how.key_heads + key_head) * how.key_dim;
            queries_.read(t - first_, from, how.key_dim);
            to_length(queries_[t - first_], length);
        }
    }

    // Find what each token adds, and write what queries find; `out` is that of token `first_`.
    void solve(const Delta& how, const float* state, float* out) {
        const int64_t asked = std::max<int64_t>(0, count_ - first_);
        for (int64_t t = 0; t < count_; t++) fade(how, keys_[t], totals_[t], nullptr, faded_[t]);
        for (int64_t i = 0; i < asked; i++)
            fade(how, queries_[i], totals_[first_ + i], nullptr, faded_[count_ + i]);
        multiply(faded_, count_ + asked, state, how, sums_);
        for (int64_t t = 0; t < count_; t++) add_token(how, t);
        for (int64_t i = 0; i < asked; i++)
            answer(how, i, out + i * how.heads * how.value_dim);
    }

    // The state behind the last token, which may take the place of the one before.
    void after(const Delta& how, const float* state, float* next) {
        const int64_t dim = how.value_dim;
        const float* end = totals_[count_ - 1];
        for (int64_t t = 0; t < count_; t++) fade(how, keys_[t], end, totals_[t], faded_[t]);
        std::fill(left_.begin(), left_.end(), 1.0f);
        fade(how, left_.data(), end, nullptr, left_.data());
        for (int64_t n = 0; n < how.key_dim; n += kTogether) {
            const int rows = static_cast<int>(std::min<int64_t>(kTogether, how.key_dim - n));
            for (int64_t p = 0; p < dim; p += kWidth) {
                const int some = static_cast<int>(dim - p);
                Vec sums[kTogether];
                for (int r = 0; r < rows; r++)
                    sums[r] = mul(set1(left_[n + r]), load_some(state + (n + r) * dim + p, some));
                for (int64_t t = 0; t < count_; t++) {
                    const Vec added = load(added_[t] + p);
                    for (int r = 0; r < rows; r++)
                        sums[r] = fma(set1(faded_[t][n + r]), added, sums[r]);
                }
                for (int r = 0; r < rows; r++) store_some(next + (n + r) * dim + p, sums[r], some);
            }
        }
    }

  private:
    void shape(const Delta& how) {
        const int64_t asked = std::max<int64_t>(0, count_ - first_);
        keys_.shape(count_, how.key_dim);
        queries_.shape(asked, how.key_dim);
        faded_.shape(count_ + asked, how.key_dim);
        totals_.shape(count_, how.channels);
        added_.shape(count_, how.value_dim);
        sums_.shape(count_ + asked, how.value_dim);
        left_.resize(up(how.key_dim));
    }

    void to_length(float* x, float length) const {
        const Vec factor = set1(length / std::sqrt(dot(x, x, keys_.width()) + kLeast));
        for (int64_t i = 0; i < keys_.width(); i += kWidth) store(x + i, mul(load(x + i), factor));
    }

    // How strong token `t` is, and what is left of the state behind it.
    void read_dynamics(const Delta& how, int64_t entry, int64_t t) {
        const int64_t at = (entry * how.page_size + begin_ + t) * how.heads + head_;
        strength_[t] = how.strength[at];
        totals_.read(t, how.decay + at * how.channels, how.channels);
        for (int64_t i = 0; t > 0 && i < totals_.width(); i += kWidth)
            store(totals_[t] + i, add(load(totals_[t - 1] + i), load(totals_[t] + i)));
    }

    // x times what is left from one place to another: e^(to - from), per channel.
    void fade(const Delta& how, const float* x, const float* to, const float* from,
              float* out) const {
        if (how.channels == 1) {
            const Vec left = set1(exp_of(from == nullptr ? to[0] : to[0] - from[0]));
            for (int64_t i = 0; i < keys_.width(); i += kWidth)
                store(out + i, mul(load(x + i), left));
            return;
        }
        for (int64_t i = 0; i < keys_.width(); i += kWidth) {
            const Vec passed = from == nullptr ? load(to + i) : sub(load(to + i), load(from + i));
            store(out + i, mul(load(x + i), exp(passed)));
        }
    }

    // Of a key or query x at token `t` with the keys of the first `count` tokens, times what is left
    // of those.
    void score(const Delta& how, const float* x, int64_t t, int64_t count, float* out) const {
        how.channels == 1 ? score_head(x, t, count, out) : score_channels(x, t, count, out);
    }

    void score_head(const float* x, int64_t t, int64_t count, float* out) const {
        alignas(64) float passed[kBlock] = {};
        for (int64_t j = 0; j < count; j++) {
            out[j] = dot(x, keys_[j], keys_.width());
            passed[j] = totals_[t][0] - totals_[j][0];
        }
        for (int64_t j = 0; j < count; j += kWidth)
            store(out + j, mul(load(out + j), exp(load(passed + j))));
    }

    void score_channels(const float* x, int64_t t, int64_t count, float* out) const {
        for (int64_t j = 0; j < count; j++) {
            Vec total = zero();
            for (int64_t i = 0; i < keys_.width(); i += kWidth) {
                const Vec left = exp(sub(load(totals_[t] + i), load(totals_[j] + i)));
                total = fma(mul(load(x + i), left), load(keys_[j] + i), total);
            }
            out[j] = sum(total);
        }
    }

    // b (v - k state - what those before it have added).
    void add_token(const Delta& how, int64_t t) {
        score(how, keys_[t], t, t, scores_);
        const Vec strength = set1(strength_[t]);
        for (int64_t p = 0; p < added_.width(); p += kWidth) {
            Vec news = sub(load(added_[t] + p), load(sums_[t] + p));
            for (int64_t j = 0; j < t; j++)
                news = fma(set1(-scores_[j]), load(added_[j] + p), news);
            store(added_[t] + p, mul(strength, news));
        }
    }

    void answer(const Delta& how, int64_t i, float* out) {
        const int64_t t = first_ + i;
        score(how, queries_[i], t, t + 1, scores_);
        for (int64_t p = 0; p < how.value_dim; p += kWidth) {
            Vec found = load(sums_[count_ + i] + p);
            for (int64_t j = 0; j <= t; j++)
                found = fma(set1(scores_[j]), load(added_[j] + p), found);
            store_some(out + p, found, static_cast<int>(how.value_dim - p));
        }
    }

    int64_t head_ = 0, begin_ = 0, count_ = 0, first_ = 0;
    Rows keys_, queries_, totals_;
    Rows faded_;  // keys, then queries, times what is left
    Rows sums_;   // of these with the state
    Rows added_;  // values, and then what tokens add
    std::vector<float> left_;
    float strength_[kBlock];
    alignas(64) float scores_[kBlock];
};

// One head of one sequence.
template <class T>
void walk(const Delta& how, const Chains& chains, int64_t row, int64_t head) {
    static thread_local Block<T> block;
    static thread_local std::vector<float> between;
    const int64_t size = how.key_dim * how.value_dim, last = chains.stops[row] - 1;
    between.resize(size);
    const auto state_of = [&](int64_t entry) {
        return how.states + chains.pages[entry] * how.state + head * size;
    };
    for (int64_t entry = chains.starts[row]; entry <= last; entry++) {
        const int64_t first = chains.firsts[entry], begin = chains.begins[entry];
        const int64_t end = first + chains.begins[entry + 1] - begin;
        const float* query = how.query + begin * how.key_heads * how.key_dim;
        const float* state = state_of(entry);
        for (int64_t t = 0; t < end; t += kBlock) {
            const int64_t until = std::min(t + kBlock, end);
            block.read(how, chains.pages[entry], entry, head, t, until, query, first);
            const int64_t asked = begin + std::max(t, first) - first;
            block.solve(how, state, how.out + (asked * how.heads + head) * how.value_dim);
            if (until < end) {
                block.after(how, state, between.data());
                state = between.data();
            } else if (entry < last) {
                block.after(how, state, state_of(entry + 1));
            }
        }
    }
}

template <class T>
void walk_all(const Delta& how, const Chains& chains, int64_t rows) {
    if (!rows) return;
    const int64_t tokens = (chains.stops[rows - 1] - chains.starts[0]) * how.page_size;
    const int64_t work = tokens * how.heads * how.key_dim * how.value_dim;
    share(work >= kWorthThreads, rows * how.heads, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++)
            walk<T>(how, chains, task / how.heads, task % how.heads);
    }, Pieces::kUneven);
}

}  // namespace
}  // namespace baton

// Each sequence of `chains`: what its queries find, and the states of all its pages but the first.
extern "C" void baton_delta(const baton::Delta* how, const baton::Chains* chains, int64_t rows) {
    if (how->bytes == 4)
        baton::walk_all<float>(*how, *chains, rows);
    else
        baton::walk_all<baton::Bf16>(*how, *chains, rows);
}
