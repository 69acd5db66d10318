// Memory that calls use again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>

namespace baton {
namespace {

// Memory of one thread, reused by every call.
class Scratch {
   public:
    float* take(size_t floats) {
        const size_t begin = used_;
        used_ += (floats + 15) / 16 * 16;
        return data_.get() + begin;
    }
    void reset(size_t floats) {
        used_ = 0;
        if (floats <= size_) return;
        size_ = floats;
        data_.reset(static_cast<float*>(std::aligned_alloc(64, (floats * 4 + 63) / 64 * 64)));
        std::fill_n(data_.get(), floats, 0.0f);
    }

   private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::unique_ptr<float, Free> data_;
    size_t size_ = 0, used_ = 0;
};

thread_local Scratch scratch;

// Memory of a task: its queries [row][word], and transposed if they are one tile; a packed block.
struct Room {
    float *query, *transposed, *keys, *values;
};

}  // namespace
}  // namespace baton
