// Some rows of numbers as floats, and what is made of single ones, for kernels of states.
//
// In a namespace without a name: g++ would keep one copy for libraries of several levels.
#pragma once

#include <cstdint>
#include <vector>

#include "simd.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // multiplications: some ten microseconds
constexpr int kTogether = 4;                // rows that pass a vector of the other side at once

inline int64_t up(int64_t count) { return (count + kWidth - 1) / kWidth * kWidth; }

// Each row is padded to whole vectors, and written by whole vectors.
class Rows {
  public:
    void shape(int64_t rows, int64_t width) {
        width_ = up(width);
        numbers_.resize(rows * width_);
    }
    float* operator[](int64_t row) { return numbers_.data() + row * width_; }
    const float* operator[](int64_t row) const { return numbers_.data() + row * width_; }
    int64_t width() const { return width_; }

    // With zeros behind them.
    template <class T>
    void read(int64_t row, const T* from, int64_t count) {
        for (int64_t i = 0; i < count; i += kWidth)
            store((*this)[row] + i, load_some(from + i, static_cast<int>(count - i)));
    }

  private:
    std::vector<float> numbers_;
    int64_t width_ = 0;
};

// Read a row of numbers of 2 or 4 bytes each, `at` so many of them.
inline void read_row(Rows& rows, int64_t row, const void* from, int64_t bytes, int64_t at,
                     int64_t count) {
    if (bytes == 4)
        rows.read(row, static_cast<const float*>(from) + at, count);
    else
        rows.read(row, static_cast<const Bf16*>(from) + at, count);
}

inline float exp_of(float x) {
    float lanes[kWidth];
    store(lanes, exp(set1(x)));
    return lanes[0];
}

// Of two rows of whole vectors.
inline float dot(const float* a, const float* b, int64_t width) {
    Vec total = zero();
    for (int64_t i = 0; i < width; i += kWidth) total = fma(load(a + i), load(b + i), total);
    return sum(total);
}

}  // namespace
}  // namespace baton
