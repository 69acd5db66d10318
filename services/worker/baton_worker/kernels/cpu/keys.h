// Keys and values of a block: where they are, and how they are packed for registers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "operands.h"

namespace baton {
namespace {

constexpr int kPadding = 32;  // channels: a whole number of registers in every layout

// Where the keys of up to kBlock tokens in a row are. Values follow at a fixed distance.
template <class P>
struct Located {
    const P* key[kBlock];
    int count;

    Located(const Batch& batch, const P* pages, const Strides& strides, int row, int head,
            int begin, int end)
        : count(end - begin) {
        const int32_t* table = batch.page_table + int64_t(row) * batch.table_width;
        const P* first = pages + head * strides.head;
        int page = begin / batch.page_size, offset = begin % batch.page_size;
        for (int i = 0; i < count; i++) {
            key[i] = first + table[page] * strides.page + offset * strides.token;
            if (++offset == batch.page_size) offset = 0, page++;
        }
    }

    // Ask for some keys, or with their distance for values, before they are needed.
    void prefetch(int first, int some, int64_t distance, int channels) const {
        for (int i = first; i < std::min(first + some, count); i++)
            for (int d = 0; d < channels + kScale<P>; d += 64 / int(sizeof(P)))
                __builtin_prefetch(key[i] + distance + d, 0, 2);
    }
};

// Reads rows of some channels in whole registers, where that would overrun by way of a copy.
template <class X, class P>
class Reader {
   public:
    explicit Reader(int channels) : dim_(channels) {}
    Vec operator()(const P* row, int channel) {
        if (channel >= dim_) return zero();
        if (channel + kStep <= dim_) return numbers(row, row + channel);
        std::copy(row + channel, row + dim_, copy_);
        return numbers(row, copy_);
    }

   private:
    Vec numbers(const P* row, const P* from) const {
        if constexpr (kScale<P> == 0) {
            return words<X>(from);
        } else {
            float scale;
            std::memcpy(&scale, row + dim_, sizeof scale);
            return words<X>(from, scale);
        }
    }

    static constexpr int kStep = kWidth * kPerWord<X>;
    int dim_;
    P copy_[kStep] = {};
};

// Channels of a key and a value, each also rounded up to whole registers.
struct Width {
    int key, value, keys, values;

    explicit Width(const Call& call)
        : key(call.head_dim),
          value(call.value_dim),
          keys(round_up(key, kPadding)),
          values(round_up(value, kPadding)) {}
};

// A block of keys, `dim` channels with those that pad them, as [word][key]. Meanwhile the keys of
// the `next` block are on their way: no hardware guesses where its page is.
template <class X, class P>
void pack_keys(const Located<P>& from, const Located<P>& next, int head_dim, int dim, float* keys) {
    Reader<X, P> read(head_dim);
    constexpr int step = kWidth * kPerWord<X>;
    for (int first = 0; first < from.count; first += kWidth) {
        next.prefetch(first, kWidth, 0, head_dim);
        for (int channel = 0; channel < dim; channel += step) {
            Vec square[kWidth];
            for (int i = 0; i < kWidth; i++)
                square[i] =
                    first + i < from.count ? read(from.key[first + i], channel) : zero();
            transpose(square);
            for (int i = 0; i < kWidth; i++)
                store(keys + (channel / kPerWord<X> + i) * kBlock + first, square[i]);
        }
    }
}

// As `pack_keys` for values, which lie at a `distance` from keys, as [key / kPerWord][channel].
template <class X, class P>
void pack_values(const Located<P>& from, const Located<P>& next, int64_t distance, int value_dim,
                 int dim, float* values) {
    Reader<X, P> read(value_dim);
    constexpr int step = kWidth * kPerWord<X>;
    for (int i = 0; i < from.count; i += kPerWord<X>) {
        next.prefetch(i, kPerWord<X>, distance, value_dim);
        for (int channel = 0; channel < dim; channel += step) {
            const bool paired = kPerWord<X> == 2 && i + 1 < from.count;
            const Vec a = read(from.key[i] + distance, channel);
            const Vec b = paired ? read(from.key[i + 1] + distance, channel) : zero();
            interleave<X>(a, b, values + i / kPerWord<X> * dim + channel);
        }
    }
    if constexpr (kTiled<X>) {
        const int words = (from.count + 1) / 2;
        std::fill_n(values + words * dim, (round_up(words, kRowsTogether) - words) * dim, 0.0f);
    }
}

}  // namespace
}  // namespace baton
