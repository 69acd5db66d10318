// The softmax of some queries over the blocks of a partition (online, Milakov and Gimelshein 2018,
// arXiv:1805.02867): products become scores, of what a query may see, and these weights.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention.h"
#include "operands.h"
#include "scratch.h"

namespace baton {
namespace {

// What queries need after some keys: the greatest score, the sum of weights, weighted values.
struct Softmax {
    float *most, *total, *sum;
};

Softmax take_softmax(Scratch& from, int rows, int dim) {
    Softmax state;
    state.most = from.take(rows);
    state.total = from.take(rows);
    state.sum = from.take(size_t(with_room(rows)) * dim);
    return state;
}

// Floats of a Softmax at most.
size_t softmax_size(int rows, int dim) { return size_t(with_room(rows)) * (dim + 2) + 64; }

void clear(Softmax& state, int rows, int dim) {
    std::fill_n(state.most, rows, kHidden);
    std::fill_n(state.total, rows, 0.0f);
    std::fill_n(state.sum, size_t(rows) * dim, 0.0f);
}

// A query row: its token's position, the first position that it may see, the first and the last
// slot of its sequence that it may see, which of its row's new tokens, the slope of its head. Slots
// and positions are the same but for the new tokens of a tree.
struct QueryView {
    int position, oldest, first, last;
    uint64_t ancestors;
    float slope;

    bool sees_none(int begin, int end) const {
        return last < begin || std::max(first, oldest) >= end;
    }
};

// A packed block: `count` keys from slot `begin` on. Where there are new tokens of a tree in it:
// their depths, the first of them at slot `start`; else null.
struct Block {
    const float *keys, *values;
    int begin, count;
    const int32_t* depths;
    int start;
};

constexpr int kMostBits = 64;      // new tokens that ancestors may leave out
constexpr float kAhead = 1 << 30;  // a position that is masked for all queries

// Positions [kBlock] of the keys of a block with new tokens of a tree, counted from its begin: to
// queries that do not see a key it lies ahead.
void place_keys(const QueryView& view, const Block& block, float* places) {
    for (int i = 0; i < kBlock; i++) {
        const int slot = block.begin + i, fresh = slot - block.start;
        const bool hidden = slot < view.first || slot > view.last ||
                            (fresh >= 0 && fresh < kMostBits && !(view.ancestors >> fresh & 1));
        if (hidden)
            places[i] = kAhead;
        else
            places[i] = fresh < 0 ? i : block.start + block.depths[fresh] - block.begin;
    }
}

// cap * tanh(x / cap).
Vec soft_cap(Vec x, const Call& call) {
    const Vec one = set1(1.0f);
    const Vec e = exp(x * set1(2.0f / call.softcap));
    return set1(call.softcap) * (one - set1(2.0f) / (e + one));
}

// As `finish_scores` for a token that sees what is in [oldest, newest], counted from the block's
// begin. So are the `places` of keys; without a tree they are one behind the other.
template <bool kTree>
float finish_visible(const Call& call, const QueryView& view, const Block& block, int oldest,
                     int newest, const float* places, float* scores) {
    const bool whole = !kTree && oldest <= 0 && kBlock <= newest + 1;
    const Vec low = set1(float(oldest)), high = set1(float(newest));
    const Vec here = set1(float(view.position - block.begin));
    Vec most = set1(kHidden);
    for (int i = 0; i < kBlock; i += kWidth) {
        const Vec key = kTree ? load(places + i) : count_up() + set1(float(i));
        Vec x = load(scores + i) * set1(call.scale);
        if (call.softcap > 0) x = soft_cap(x, call);
        if (call.slopes) x = fma(set1(view.slope), key - here, x);
        if (!whole) x = within(key, low, high, x, set1(kHidden));
        store(scores + i, x);
        most = max(most, x);
    }
    return largest(most);
}

// Products [kBlock] to scores, hidden ones at -inf; returns the greatest.
float finish_scores(const Call& call, const QueryView& view, const Block& block, float* scores) {
    if (block.depths == nullptr) {
        const int oldest = std::max(view.oldest, view.first) - block.begin;
        return finish_visible<false>(call, view, block, oldest, view.last - block.begin, nullptr,
                                     scores);
    }
    alignas(64) float places[kBlock];
    place_keys(view, block, places);
    return finish_visible<true>(call, view, block, view.oldest - block.begin,
                                view.position - block.begin, places, scores);
}

// Scores [kBlock] to weights as words of X, in place; returns their sum as the product sees them.
template <class X>
float finish_weights(float* scores, float most) {
    X* weights = reinterpret_cast<X*>(scores);
    Vec total = zero();
    for (int i = 0; i < kBlock; i += kWidth) {
        store(weights + i, exp(load(scores + i) - set1(most)));
        total = total + load(weights + i);
    }
    return sum(total);
}

float exp_one(float x) {
    alignas(64) float out[kWidth];
    store(out, exp(set1(x)));
    return out[0];
}

// Nothing seen yet is -inf, and -inf - -inf is no number: measured from 0 it weighs 0, as it must.
float base_of(float most) { return most == kHidden ? 0.0f : most; }

// The products [n][kBlock] of n queries with a block become weights, in place; `fade` is what is
// left of their sums so far.
template <class X>
void update_softmax(int n, const Call& call, const QueryView* views, const Block& block,
                    Softmax state, float* scores, float* fade) {
    float most[kWidth];
    for (int i = 0; i < n; i++) {
        const float greatest = finish_scores(call, views[i], block, scores + i * kBlock);
        // NaN must win, so that a broken sequence shows.
        most[i] = greatest <= state.most[i] ? state.most[i] : greatest;
        fade[i] = state.most[i] - base_of(most[i]);
    }
    store(fade, exp(load(fade)));
    for (int i = 0; i < n; i++) {
        const float added = finish_weights<X>(scores + i * kBlock, base_of(most[i]));
        state.total[i] = state.total[i] * fade[i] + added;
        state.most[i] = most[i];
    }
}

// into += from, for one query row.
void merge_row(Softmax into, Softmax from, int r, int dim) {
    const float most = from.most[r] <= into.most[r] ? into.most[r] : from.most[r];
    const float old = exp_one(into.most[r] - base_of(most));
    const float fresh = exp_one(from.most[r] - base_of(most));
    into.most[r] = most;
    into.total[r] = into.total[r] * old + from.total[r] * fresh;
    float *a = into.sum + int64_t(r) * dim, *b = from.sum + int64_t(r) * dim;
    for (int d = 0; d < dim; d += kWidth) {
        const Vec faded = load(a + d) * set1(old);
        store(a + d, fma(load(b + d), set1(fresh), faded));
    }
}

void merge(Softmax into, Softmax from, int rows, int dim) {
    for (int r = 0; r < rows; r++) merge_row(into, from, r, dim);
}

}  // namespace
}  // namespace baton
