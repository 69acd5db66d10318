// From logits to tokens, row by row: the most probable one, or temperature, min-p, top-k, top-p, a draw.
//
// The twin is sampling/sampler.py. A row is the work of one thread, so that its token does not
// depend on how many rows there are. Weights are not divided by their sum: what is compared with a
// share of it is compared with that share of the sum.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "simd.h"
#include "team.h"

namespace baton {
namespace {

constexpr int kBlock = 128;  // tokens whose weights are summed before sums are: see blocks.py
// Least weights, as parts of the greatest, of those that are looked at for a threshold: first those
// that few tokens have, then more, then all. A sort of a whole vocabulary takes a hundred times as
// long as a look at it.
constexpr float kCuts[] = {1.0f / (1 << 10), 1.0f / (1 << 22), 0.0f};

// Columns of parameters; mirrored in kernels/sampling.py.
struct Parameters {
    const float* warmth;     // 1 / temperature
    const std::int64_t* top_k;  // outside of (0, vocab): all
    const double* top_p;     // 1: all
    const double* min_p;     // 0: all
    const double* uniform;   // in (0, 1)
};

// A row's memory, which stays with its thread.
struct Scratch {
    std::vector<float> some;
    std::vector<double> sums;
};

thread_local Scratch scratch;

Vec load_padded(const float* x, std::int64_t left, float padding) {
    if (left >= kWidth) return load(x);
    float padded[kWidth];
    std::fill_n(padded, kWidth, padding);
    std::copy_n(x, left, padded);
    return load(padded);
}

// The first of the greatest logits; -1 if it is not finite or one is NaN.
std::int32_t most_probable(const float* x, std::int64_t vocab) {
    constexpr float kLow = -std::numeric_limits<float>::infinity();
    float greatest = kLow;
    std::int64_t block = 0;
    IntVec nans = set1(std::int32_t{0});
    for (std::int64_t begin = 0; begin < vocab; begin += kBlock) {
        const std::int64_t end = std::min(begin + kBlock, vocab);
        Vec most = set1(kLow);
        for (std::int64_t i = begin; i < end; i += kWidth) {
            const Vec some = load_padded(x + i, end - i, kLow);
            most = max(most, some);
            nans = where_nan(some, nans, set1(std::int32_t{1}));
        }
        const float here = largest(most);
        if (here > greatest) {
            greatest = here;
            block = begin;
        }
    }
    if (!std::isfinite(greatest) || largest(to_float(nans)) > 0) return -1;
    return static_cast<std::int32_t>(std::find(x + block, x + vocab, greatest) - x);
}

// Logits to weights in place: the greatest is 1.
void weigh(float* x, std::int64_t vocab, float warmth) {
    constexpr float kLow = -std::numeric_limits<float>::infinity();
    Vec most = set1(kLow);
    for (std::int64_t i = 0; i < vocab; i += kWidth) {
        most = max(most, load_padded(x + i, vocab - i, kLow));
    }
    const Vec top = set1(largest(most)), warm = set1(warmth);
    for (std::int64_t i = 0; i < vocab; i += kWidth) {
        const Vec weight = exp(mul(sub(load_padded(x + i, vocab - i, kLow), top), warm));
        store_some(x + i, weight, static_cast<int>(std::min<std::int64_t>(kWidth, vocab - i)));
    }
}

// Sum of a block of weights that are not below `least`.
float block_sum(const float* weights, std::int64_t left, Vec least) {
    Vec sums = zero();
    for (int i = 0; i < kBlock && i < left; i += kWidth) {
        const Vec weight = load_padded(weights + i, left - i, 0.0f);
        sums = add(sums, zero_below(weight, least, weight));
    }
    return sum(sums);
}

double mass(const float* weights, std::int64_t vocab, float least) {
    double total = 0;
    for (std::int64_t i = 0; i < vocab; i += kBlock) {
        total += block_sum(weights + i, vocab - i, set1(least));
    }
    return total;
}

// Weights that are not below `least`, in the order of their tokens.
void gather(const float* weights, std::int64_t vocab, float least, std::vector<float>& into) {
    into.clear();
    for (std::int64_t i = 0; i < vocab; i += kWidth) {
        const std::int64_t left = std::min<std::int64_t>(kWidth, vocab - i);
        if (largest(load_padded(weights + i, left, -1.0f)) < least) continue;
        for (std::int64_t j = i; j < i + left; ++j) {
            if (weights[j] >= least) into.push_back(weights[j]);
        }
    }
}

// The k-th greatest weight.
float kth(const float* weights, std::int64_t vocab, std::int64_t k, std::vector<float>& some) {
    for (const float cut : kCuts) {
        gather(weights, vocab, cut, some);
        if (static_cast<std::int64_t>(some.size()) < k) continue;
        std::nth_element(some.begin(), some.begin() + (k - 1), some.end(), std::greater<float>());
        return some[static_cast<std::size_t>(k - 1)];
    }
    return 0;
}

double sum_of(const float* from, const float* to) {
    double total = 0;
    for (; from < to; ++from) total += *from;
    return total;
}

// The greatest weight such that those not below it sum up to `target`: quickselect by mass. The
// least one if all of them do not.
float reaching(std::vector<float>& some, double target) {
    float *first = some.data(), *last = first + some.size();
    double above = 0;
    for (;;) {
        const float pivot = first[(last - first) / 2];
        float* equal = std::partition(first, last, [=](float x) { return x > pivot; });
        float* below = std::partition(equal, last, [=](float x) { return x == pivot; });
        const double greater = above + sum_of(first, equal);
        const double with = greater + sum_of(equal, below);
        if (greater >= target && equal > first) {
            last = equal;
        } else if (with >= target || below == last) {
            return pivot;
        } else {
            above = with;
            first = below;
        }
    }
}

// The least weight that is kept so that those kept are the fewest with a share of `top_p` of what
// is not below `least`.
float nucleus(const float* weights, std::int64_t vocab, float least, double top_p,
              std::vector<float>& some) {
    const double target = top_p * mass(weights, vocab, least);
    for (const float cut : kCuts) {
        const float from = std::max(cut, least);
        if (from > least && mass(weights, vocab, from) < target) continue;
        gather(weights, vocab, from, some);
        return std::max(least, reaching(some, target));
    }
    return least;
}

// The least weight that is kept.
float threshold(const float* weights, std::int64_t vocab, const Parameters& how, std::int64_t row,
                std::vector<float>& some) {
    float least = static_cast<float>(how.min_p[row]);
    const std::int64_t k = how.top_k[row];
    if (k > 0 && k < vocab) least = std::max(least, kth(weights, vocab, k, some));
    if (how.top_p[row] < 1) least = nucleus(weights, vocab, least, how.top_p[row], some);
    return least;
}

// Two sums of the same numbers may differ in the last bits; the last of them is above any target.
double reachable(double target, double total) {
    return std::min(target, std::nextafter(total, 0.0));
}

// The first token, in the order of the vocabulary, up to which weights not below `least` sum up to
// more than a share of all of them.
std::int64_t invert(const float* weights, std::int64_t vocab, float least, double share,
                    std::vector<double>& sums) {
    sums.clear();
    double total = 0;
    for (std::int64_t i = 0; i < vocab; i += kBlock) {
        total += block_sum(weights + i, vocab - i, set1(least));
        sums.push_back(total);
    }
    const double target = share * total;
    const auto found = std::upper_bound(sums.begin(), sums.end(), reachable(target, total));
    const std::int64_t first = (found - sums.begin()) * kBlock;
    const std::int64_t last = std::min(first + kBlock, vocab);
    const double before = found == sums.begin() ? 0 : *(found - 1);
    const auto kept = [&](std::int64_t i) { return weights[i] >= least ? weights[i] : 0.0; };
    double inner = 0;
    for (std::int64_t i = first; i < last; ++i) inner += kept(i);
    const double wanted = reachable(target - before, inner);
    double sum = 0;
    for (std::int64_t i = first; i < last; ++i) {
        sum += kept(i);
        if (sum > wanted) return i;
    }
    return last - 1;
}

}  // namespace
}  // namespace baton

// logits float [rows, vocab], of which each row has a finite one and neither NaN nor infinity;
// overwritten. tokens int32 [rows].
extern "C" void baton_sample(float* logits, std::int64_t rows, std::int64_t vocab,
                             const baton::Parameters* how, std::int32_t* tokens) {
    using namespace baton;
    share(true, rows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            float* weights = logits + row * vocab;
            weigh(weights, vocab, how->warmth[row]);
            const float least = threshold(weights, vocab, *how, row, scratch.some);
            tokens[row] = static_cast<std::int32_t>(
                invert(weights, vocab, least, how->uniform[row], scratch.sums));
        }
    }, Pieces::kUneven);
}

// logits float [rows, vocab]; tokens int32 [rows].
extern "C" void baton_most_probable(const float* logits, std::int64_t rows, std::int64_t vocab,
                                    std::int32_t* tokens) {
    using namespace baton;
    share(rows > 1, rows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
            tokens[row] = most_probable(logits + row * vocab, vocab);
        }
    });
}
