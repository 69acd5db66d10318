// Experts over routed tokens: what a token is given by each of its experts, weighted and added up.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "activation.h"
#include "team.h"

namespace baton {

// A packed weight and its product: baton_linear of linear.cpp or of block_linear.cpp.
struct Product {
    void (*run)(const void* weight, const void* x, int64_t rows, int64_t stride,
                const void* residual, void* out);
    const void* weight;
};

// Mirrored in kernels/moe/cpu_experts.py. What stands between the products of an expert where the first
// does not apply it, see spec.Glu and spec.Mlp.
struct Gate {
    int64_t activation, gated, limit_first;
    float scale, limit, up_offset;  // a limit of infinity: none
};

// Mirrored in kernels/moe/cpu_experts.py.
struct Experts {
    const Product *gate_up, *down;  // [num]
    int64_t num, hidden, intermediate;
    int64_t bytes;        // of a value: 2 is bfloat16, 4 is float
    int64_t weigh_input;  // a visit's weight applies to what an expert is given
    const Gate* gate;     // null: the first product applies it
};

namespace {

constexpr int64_t kWorthThreads = 1 << 16;  // values: some ten microseconds

// Visits, token * slots + slot, in the order of their experts; those to no expert are left out.
struct Dispatch {
    std::vector<int64_t> starts;  // of each expert in `visits`, and the end
    std::vector<int64_t> visits;
    std::vector<int64_t> places;  // of each visit in `visits`, or -1
    std::vector<int64_t> visited; // experts

    void sort(const int64_t* experts, int64_t count, int64_t num) {
        const auto exists = [&](int64_t expert) { return expert >= 0 && expert < num; };
        starts.assign(num + 1, 0);
        for (int64_t v = 0; v < count; v++) {
            if (exists(experts[v])) starts[experts[v] + 1]++;
        }
        visited.clear();
        for (int64_t e = 0; e < num; e++) {
            if (starts[e + 1] > 0) visited.push_back(e);
        }
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        std::vector<int64_t>& next = next_;
        next.assign(starts.begin(), starts.end());
        visits.resize(starts[num]);
        places.resize(count);
        for (int64_t v = 0; v < count; v++) {
            places[v] = exists(experts[v]) ? next[experts[v]]++ : -1;
            if (places[v] >= 0) visits[places[v]] = v;
        }
    }

  private:
    std::vector<int64_t> next_;
};

template <class T>
void weigh_row(const T* x, float weight, int64_t size, T* y) {
    for (int64_t i = 0; i < size; i += kWidth) {
        const int some = static_cast<int>(std::min<int64_t>(kWidth, size - i));
        store_some(y + i, mul(load_some(x + i, some), set1(weight)), some);
    }
}

// Rows [2 * size], gate and then up, or up alone [size], to [size].
template <class T>
void apply_gate(const Gate& how, const T* from, int64_t rows, int64_t size, T* to) {
    const Vec scale = set1(how.scale), limit = set1(how.limit), least = set1(-how.limit);
    const Vec offset = set1(how.up_offset);
    const int64_t step = how.gated ? 2 * size : size;
    with_activation(how.activation, [&](auto activation) {
        // For a NaN `min` and `max` return their second operand.
        const auto gated = [&](Vec gate, Vec up) {
            gate = mul(gate, scale);
            if (how.limit_first) gate = min(limit, gate);
            gate = activation(gate);
            if (!how.limit_first) gate = min(limit, gate);
            return mul(gate, add(max(least, min(limit, up)), offset));
        };
        for (int64_t row = 0; row < rows; row++, from += step, to += size) {
            for (int64_t i = 0; i < size; i += kWidth) {
                const int some = static_cast<int>(std::min<int64_t>(kWidth, size - i));
                const Vec first = load_some(from + i, some);
                const Vec y = how.gated ? gated(first, load_some(from + size + i, some))
                                        : activation(first);
                store_some(to + i, y, some);
            }
        }
    });
}

// The weighted rows of a token, added in the order of its slots, in float and rounded once. A slot
// without a row, null, adds nothing; without weights they are ones.
template <class T, class Row>
void add_slots(const Row& row, const float* weights, int64_t slots, int64_t size, T* out) {
    for (int64_t i = 0; i < size; i += kWidth) {
        const int some = static_cast<int>(std::min<int64_t>(kWidth, size - i));
        Vec total = zero();
        for (int64_t slot = 0; slot < slots; slot++) {
            const T* from = row(slot);
            const Vec weight = set1(weights ? weights[slot] : 1.0f);
            if (from) total = fma(load_some(from + i, some), weight, total);
        }
        store_some(out + i, total, some);
    }
}

// Memory of a call, which the next one uses again.
struct Room {
    Dispatch dispatch;
    std::vector<uint8_t> inputs, halves, inner, returned;
};

template <class T>
T* take(std::vector<uint8_t>& memory, int64_t values) {
    const size_t bytes = values * sizeof(T);
    if (memory.size() < bytes) memory.resize(bytes);
    return reinterpret_cast<T*>(memory.data());
}

template <class T>
class Step {
  public:
    Step(const Experts& how, const T* x, const float* weights, int64_t slots, Room& room)
        : how_(how), x_(x), weights_(weights), slots_(slots), dispatch_(room.dispatch) {
        const int64_t visits = dispatch_.visits.size();
        inputs_ = take<T>(room.inputs, visits * how.hidden);
        if (how.gate) halves_ = take<T>(room.halves, visits * halves());
        inner_ = take<T>(room.inner, visits * how.intermediate);
        returned_ = take<T>(room.returned, visits * how.hidden);
    }

    // Experts side by side where there are enough for all threads, else the columns of each.
    void run_experts() const {
        const int64_t visited = dispatch_.visited.size();
        const auto run = [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) run_expert(dispatch_.visited[i]);
        };
        share(visited >= 2 * omp_get_max_threads(), visited, run, Pieces::kUneven);
    }

    void combine(int64_t tokens, T* out) const {
        const int64_t hidden = how_.hidden;
        share(tokens * slots_ * hidden >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; t++) {
                const auto row = [&](int64_t slot) -> const T* {
                    const int64_t place = dispatch_.places[t * slots_ + slot];
                    return place < 0 ? nullptr : returned_ + place * hidden;
                };
                const float* weights = how_.weigh_input ? nullptr : weights_ + t * slots_;
                add_slots(row, weights, slots_, hidden, out + t * hidden);
            }
        });
    }

  private:
    int64_t halves() const { return how_.gate->gated ? 2 * how_.intermediate : how_.intermediate; }

    void run_expert(int64_t expert) const {
        const int64_t first = dispatch_.starts[expert];
        const int64_t count = dispatch_.starts[expert + 1] - first;
        T* inner = inner_ + first * how_.intermediate;
        const Product &up = how_.gate_up[expert], &down = how_.down[expert];
        T* product = how_.gate ? halves_ + first * halves() : inner;
        up.run(up.weight, gathered(first, count), count, how_.hidden, nullptr, product);
        if (how_.gate) apply_gate(*how_.gate, product, count, how_.intermediate, inner);
        down.run(down.weight, inner, count, how_.intermediate, nullptr,
                 returned_ + first * how_.hidden);
    }

    // What some visits to one expert give it, row after row.
    const T* gathered(int64_t first, int64_t count) const {
        const int64_t hidden = how_.hidden;
        if (count == 1 && !how_.weigh_input) return x_ + dispatch_.visits[first] / slots_ * hidden;
        T* inputs = inputs_ + first * hidden;
        for (int64_t i = 0; i < count; i++) {
            const int64_t visit = dispatch_.visits[first + i];
            const T* row = x_ + visit / slots_ * hidden;
            if (how_.weigh_input)
                weigh_row(row, weights_[visit], hidden, inputs + i * hidden);
            else
                std::memcpy(inputs + i * hidden, row, hidden * sizeof(T));
        }
        return inputs;
    }

    const Experts& how_;
    const T* x_;
    const float* weights_;
    const int64_t slots_;
    const Dispatch& dispatch_;
    T *inputs_, *halves_ = nullptr, *inner_, *returned_;
};

template <class T>
void run(const Experts& how, const void* x, const int64_t* experts, const float* weights,
         int64_t tokens, int64_t slots, void* out) {
    static thread_local Room room;
    room.dispatch.sort(experts, tokens * slots, how.num);
    const Step<T> step(how, static_cast<const T*>(x), weights, slots, room);
    step.run_experts();
    step.combine(tokens, static_cast<T*>(out));
}

template <class T>
void weighted_sum(const void* rows, const float* weights, int64_t tokens, int64_t slots,
                  int64_t size, void* out) {
    const T* from = static_cast<const T*>(rows);
    share(tokens * slots * size >= kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            const auto row = [&](int64_t slot) { return from + (t * slots + slot) * size; };
            add_slots(row, weights + t * slots, slots, size, static_cast<T*>(out) + t * size);
        }
    });
}

}  // namespace
}  // namespace baton

// x and out [tokens, hidden]; experts and weights [tokens, slots].
extern "C" void baton_experts(const baton::Experts* how, const void* x, const int64_t* experts,
                              const float* weights, int64_t tokens, int64_t slots, void* out) {
    if (how->bytes == 4)
        baton::run<float>(*how, x, experts, weights, tokens, slots, out);
    else
        baton::run<baton::Bf16>(*how, x, experts, weights, tokens, slots, out);
}

// rows [tokens, slots, size] times weights [tokens, slots], added as those of experts are: to out
// [tokens, size].
extern "C" void baton_weighted_sum(int64_t bytes, const void* rows, const float* weights,
                                   int64_t tokens, int64_t slots, int64_t size, void* out) {
    if (bytes == 4)
        baton::weighted_sum<float>(rows, weights, tokens, slots, size, out);
    else
        baton::weighted_sum<baton::Bf16>(rows, weights, tokens, slots, size, out);
}
