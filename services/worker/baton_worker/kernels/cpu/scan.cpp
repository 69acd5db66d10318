// The selective scan (Mamba, Gu and Dao 2023, arXiv:2312.00752) over pages that keep its inputs, each
// with the state that it begins in: see kernels/scan.py.
//
// Channels do not know of each other. One thread walks some of them through the pages of a sequence,
// token by token, which is the one order there is: where a text is cut changes no bit.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "chains.h"
#include "rows.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kChannels = 4 * kWidth;  // of a thread at a time

// Mirrored in kernels/scan.py.
struct Scan {
    const void* tokens;  // of pages: inputs, time steps, how states are written
    float* states;       // of pages, [state_size, channels]
    const float* rates;  // [state_size, channels], halvings
    const float* bias;   // [channels], of time steps
    const float* read;   // [queries, state_size]
    float* out;          // [queries, channels]
    int64_t page, token, state;  // strides: of pages, of their tokens, of pages' states
    int64_t input;               // where in a row inputs begin
    int64_t channels, state_size, page_size, bytes;
};

// What a vector of channels has come to.
class State {
  public:
    State(const Scan& how, int64_t channel)
        : how_(how), channel_(channel), count_(static_cast<int>(how.channels - channel)) {
        state_.resize(how.state_size * kWidth);
    }

    void load_from(const float* page) {
        for (int64_t n = 0; n < how_.state_size; n++)
            store(at(n), load_some(page + n * how_.channels + channel_, count_));
    }

    void store_to(float* page) const {
        for (int64_t n = 0; n < how_.state_size; n++)
            store_some(page + n * how_.channels + channel_, load(at(n)), count_);
    }

    // Pass a token whose row of inputs it is, written by `write`; what `read` finds then, if any.
    template <class T>
    void pass(const T* row, const float* write, const float* read, float* out) {
        const Vec raised = load_some(row + how_.channels + channel_, count_);
        const Vec step = softplus(add(raised, load_some(how_.bias + channel_, count_)));
        const Vec driven = mul(step, load_some(row + channel_, count_));
        Vec found = zero();
        for (int64_t n = 0; n < how_.state_size; n++) {
            const Vec rate = load_some(how_.rates + n * how_.channels + channel_, count_);
            const Vec left = mul(load(at(n)), exp2(mul(step, rate)));
            const Vec state = fma(set1(write[n]), driven, left);
            store(at(n), state);
            if (read != nullptr) found = fma(set1(read[n]), state, found);
        }
        if (read != nullptr) store_some(out + channel_, found, count_);
    }

  private:
    float* at(int64_t n) { return state_.data() + n * kWidth; }
    const float* at(int64_t n) const { return state_.data() + n * kWidth; }

    const Scan& how_;
    int64_t channel_;
    int count_;  // of channels that there are from here on
    std::vector<float> state_;
};

// Some channels of one sequence.
template <class T>
void walk(const Scan& how, const Chains& chains, int64_t row, int64_t channel) {
    static thread_local Rows writes;
    std::vector<State> states;
    const int64_t end = std::min(channel + kChannels, how.channels);
    for (int64_t c = channel; c < end; c += kWidth) states.emplace_back(how, c);
    const int64_t last = chains.stops[row] - 1;
    for (int64_t entry = chains.starts[row]; entry <= last; entry++) {
        const int64_t page = chains.pages[entry], first = chains.firsts[entry];
        const int64_t begin = chains.begins[entry];
        const int64_t count = first + chains.begins[entry + 1] - begin;
        const T* tokens = static_cast<const T*>(how.tokens) + page * how.page + how.input;
        writes.shape(count, how.state_size);
        for (int64_t t = 0; t < count; t++)
            writes.read(t, tokens + t * how.token + 2 * how.channels, how.state_size);
        for (State& state : states) {
            if (entry == chains.starts[row]) state.load_from(how.states + page * how.state);
            for (int64_t t = 0; t < count; t++) {
                const int64_t query = begin + t - first;
                const float* read = t < first ? nullptr : how.read + query * how.state_size;
                state.pass(tokens + t * how.token, writes[t], read,
                           how.out + std::max(begin, query) * how.channels);
            }
            if (entry < last) state.store_to(how.states + chains.pages[entry + 1] * how.state);
        }
    }
}

template <class T>
void walk_all(const Scan& how, const Chains& chains, int64_t rows) {
    const int64_t groups = (how.channels + kChannels - 1) / kChannels;
    if (!rows) return;
    const int64_t tokens = (chains.stops[rows - 1] - chains.starts[0]) * how.page_size;
    const bool worth = tokens * how.channels * how.state_size >= kWorthThreads;
    share(worth, rows * groups, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++)
            walk<T>(how, chains, task / groups, task % groups * kChannels);
    }, Pieces::kUneven);
}

}  // namespace
}  // namespace baton

// Each sequence of `chains`: what its queries find, and the states of all its pages but the first.
extern "C" void baton_scan(const baton::Scan* how, const baton::Chains* chains, int64_t rows) {
    if (how->bytes == 4)
        baton::walk_all<float>(*how, *chains, rows);
    else
        baton::walk_all<baton::Bf16>(*how, *chains, rows);
}
