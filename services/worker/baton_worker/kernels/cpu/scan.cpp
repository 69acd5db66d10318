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

// Mirrored in kernels/recurrent/scan.py.
struct Layout {
    const void* tokens;  // of pages: inputs, time steps, how states are written
    float* states;       // of pages, [state_size, channels]
    const float* rates;  // [state_size, channels], halvings
    const float* bias;   // [channels], of time steps
    int64_t page, token, state;  // strides: of pages, of their tokens, of pages' states
    int64_t input;               // where in a row inputs begin
    int64_t channels, state_size, page_size, bytes;
    int64_t read_stride, read_bytes;
};

struct Scan : Layout {
    const void* read;  // [queries, read_stride], of which state_size are read
    float* out;        // [queries, channels]
};

// What a vector of channels has come to.
class State {
  public:
    State(const Scan& params, int64_t channel)
        : params_(params), channel_(channel), count_(static_cast<int>(params.channels - channel)) {
        state_.resize(params.state_size * kWidth);
    }

    void load_from(const float* page) {
        for (int64_t n = 0; n < params_.state_size; n++)
            store(at(n), load_some(page + n * params_.channels + channel_, count_));
    }

    void store_to(float* page) const {
        for (int64_t n = 0; n < params_.state_size; n++)
            store_some(page + n * params_.channels + channel_, load(at(n)), count_);
    }

    // Pass a token whose row of inputs it is, written by `write`; what `read` finds then, if any.
    template <class T>
    void advance(const T* row, const float* write, const float* read, float* out) {
        const Vec raw_step = load_some(row + params_.channels + channel_, count_);
        const Vec step = softplus(add(raw_step, load_some(params_.bias + channel_, count_)));
        const Vec step_input = mul(step, load_some(row + channel_, count_));
        Vec output = zero();
        for (int64_t n = 0; n < params_.state_size; n++) {
            const Vec rate = load_some(params_.rates + n * params_.channels + channel_, count_);
            const Vec decayed = mul(load(at(n)), exp2(mul(step, rate)));
            const Vec state = fma(set1(write[n]), step_input, decayed);
            store(at(n), state);
            if (read != nullptr) output = fma(set1(read[n]), state, output);
        }
        if (read != nullptr) store_some(out + channel_, output, count_);
    }

  private:
    float* at(int64_t n) { return state_.data() + n * kWidth; }
    const float* at(int64_t n) const { return state_.data() + n * kWidth; }

    const Scan& params_;
    int64_t channel_;
    int count_;  // of channels that there are from here on
    std::vector<float> state_;
};

// Some channels of one sequence.
template <class T>
void scan_channels(const Scan& params, const Chains& chains, int64_t row, int64_t channel) {
    static thread_local Rows writes, reads;
    std::vector<State> states;
    const int64_t end = std::min(channel + kChannels, params.channels);
    for (int64_t c = channel; c < end; c += kWidth) states.emplace_back(params, c);
    const int64_t last = chains.stops[row] - 1;
    for (int64_t entry = chains.starts[row]; entry <= last; entry++) {
        const int64_t page = chains.pages[entry], first = chains.firsts[entry];
        const int64_t begin = chains.begins[entry];
        const int64_t count = first + chains.begins[entry + 1] - begin;
        const T* tokens = static_cast<const T*>(params.tokens) + page * params.page + params.input;
        writes.shape(count, params.state_size);
        for (int64_t t = 0; t < count; t++)
            writes.read(t, tokens + t * params.token + 2 * params.channels, params.state_size);
        reads.shape(count, params.state_size);
        for (int64_t t = first; t < count; t++)
            read_row(reads, t, params.read, params.read_bytes,
                     (begin + t - first) * params.read_stride, params.state_size);
        for (State& state : states) {
            if (entry == chains.starts[row]) state.load_from(params.states + page * params.state);
            for (int64_t t = 0; t < count; t++) {
                const int64_t query = begin + t - first;
                const float* read = t < first ? nullptr : reads[t];
                state.advance(tokens + t * params.token, writes[t], read,
                              params.out + std::max(begin, query) * params.channels);
            }
            if (entry < last)
                state.store_to(params.states + chains.pages[entry + 1] * params.state);
        }
    }
}

template <class T>
void scan_all(const Scan& params, const Chains& chains, int64_t rows) {
    const int64_t groups = (params.channels + kChannels - 1) / kChannels;
    if (!rows) return;
    const int64_t tokens = (chains.stops[rows - 1] - chains.starts[0]) * params.page_size;
    const bool use_threads = tokens * params.channels * params.state_size >= kWorthThreads;
    share(use_threads, rows * groups, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; task++)
            scan_channels<T>(params, chains, task / groups, task % groups * kChannels);
    }, Pieces::kUneven);
}

}  // namespace
}  // namespace baton

// Each sequence of `chains`: what its queries find, and the states of all its pages but the first.
extern "C" void baton_scan(const baton::Layout* layout, int64_t rows, const int64_t* starts,
                           const int64_t* stops, const int64_t* pages, const int64_t* firsts,
                           const int64_t* begins, const void* read, float* out) {
    const baton::Chains chains{starts, stops, pages, firsts, begins};
    const baton::Scan params{*layout, read, out};
    if (params.bytes == 4)
        baton::scan_all<float>(params, chains, rows);
    else
        baton::scan_all<baton::Bf16>(params, chains, rows);
}
