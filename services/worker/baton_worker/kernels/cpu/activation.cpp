// Activations of feed-forwards, value by value.

#include <algorithm>
#include <cstdint>

#include "activation.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // values: some ten microseconds

template <class T, class Function>
void activate(const Function& function, const T* x, int64_t count, T* y) {
    const int64_t vectors = (count + kWidth - 1) / kWidth;
    share(count >= kWorthThreads, vectors, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * kWidth; i < std::min(end * kWidth, count); i += kWidth) {
            const int some = static_cast<int>(std::min<int64_t>(kWidth, count - i));
            store_some(y + i, function(load_some(x + i, some)), some);
        }
    });
}

template <class T>
void choose(int64_t which, const void* x, int64_t count, void* y) {
    with_activation(which, [&](auto function) {
        activate(function, static_cast<const T*>(x), count, static_cast<T*>(y));
    });
}

}  // namespace
}  // namespace baton

// x and y: `count` values of `bytes` each, 2 is bfloat16 and 4 is float.
extern "C" void baton_activate(int64_t which, int64_t bytes, const void* x, int64_t count,
                               void* y) {
    if (bytes == 4)
        baton::choose<float>(which, x, count, y);
    else
        baton::choose<baton::Bf16>(which, x, count, y);
}
