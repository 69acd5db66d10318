// Exact arithmetic of torch between kernels, row by row.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd.h"
#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // values: some ten microseconds

// Mirrored in elementwise.py.
enum Operation : int64_t { kAdd = 0, kSub = 1, kMul = 2, kDiv = 3 };

// Where the second operand of a row lies; a step of 0 repeats a value.
template <class T>
struct Operand {
    const T* from;  // null: `number`
    int64_t row_step, step;
    float number;

    Vec load(int64_t row, int64_t column, int count) const {
        if (!from) return set1(number);
        const T* at = from + row * row_step + column * step;
        if (step) return load_some(at, count);
        T repeated[kWidth];
        std::fill_n(repeated, kWidth, *at);
        return baton::load(repeated);
    }
};

template <class T, class Function>
void apply(const Function& function, const T* a, int64_t a_step, int64_t rows, int64_t columns,
           const Operand<T>& b, T* y) {
    share(rows * columns >= kWorthThreads, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            for (int64_t i = 0; i < columns; i += kWidth) {
                const int some = static_cast<int>(std::min<int64_t>(kWidth, columns - i));
                const Vec x = load_some(a + row * a_step + i, some);
                store_some(y + row * columns + i, function(x, b.load(row, i, some)), some);
            }
        }
    });
}

template <class T>
void choose(int64_t which, const void* a, int64_t a_step, int64_t rows, int64_t columns,
            const Operand<T>& b, void* y) {
    const auto run = [&](auto function) {
        apply(function, static_cast<const T*>(a), a_step, rows, columns, b, static_cast<T*>(y));
    };
    if (which == kAdd)
        run([](Vec x, Vec z) { return add(x, z); });
    else if (which == kSub)
        run([](Vec x, Vec z) { return sub(x, z); });
    else if (which == kMul)
        run([](Vec x, Vec z) { return mul(x, z); });
    else
        run([](Vec x, Vec z) { return div(x, z); });
}

}  // namespace
}  // namespace baton

// y = a op b of `bytes` per value, 2 is bfloat16 and 4 is float. a [rows, columns] with `a_step`
// between rows; y [rows, columns], which may be a; b of any steps, or null: then the number whose bits
// are `number`.
extern "C" void baton_elementwise(int64_t which, int64_t bytes, const void* a, int64_t a_step,
                                  int64_t rows, int64_t columns, const void* b, int64_t b_row_step,
                                  int64_t b_step, int64_t number, void* y) {
    const std::uint32_t bits = static_cast<std::uint32_t>(number);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    const auto run = [&](auto element) {
        using T = decltype(element);
        baton::choose<T>(which, a, a_step, rows, columns,
                         {static_cast<const T*>(b), b_row_step, b_step, value}, y);
    };
    if (bytes == 4)
        run(float{});
    else
        run(baton::Bf16{});
}
