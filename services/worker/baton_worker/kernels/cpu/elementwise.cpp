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

constexpr int64_t kWorthCopies = 1 << 17;  // bytes: some ten microseconds

// Mirrored in elementwise.py. Numbers of each of two axes, then of neighbours; steps in elements.
struct Copy {
    int64_t outer, middle, width;
    int64_t row, outer_step, middle_step;        // of what is read
    int64_t to_row, to_outer_step, to_middle_step;
    int64_t bytes, to_bytes;  // of an element; if they differ, one is float and one is bfloat16
};

template <class T, class To>
void convert(const T* from, int64_t count, To* to) {
    for (int64_t i = 0; i < count; i += kWidth) {
        const int some = static_cast<int>(std::min<int64_t>(kWidth, count - i));
        store_some(to + i, load_some(from + i, some), some);
    }
}

void copy_row(const Copy& how, const char* from, char* to) {
    for (int64_t i = 0; i < how.outer; i++) {
        for (int64_t j = 0; j < how.middle; j++) {
            const char* a = from + (i * how.outer_step + j * how.middle_step) * how.bytes;
            char* b = to + (i * how.to_outer_step + j * how.to_middle_step) * how.to_bytes;
            if (how.bytes == how.to_bytes)
                std::memcpy(b, a, static_cast<std::size_t>(how.width * how.bytes));
            else if (how.bytes == 4)
                convert(reinterpret_cast<const float*>(a), how.width, reinterpret_cast<Bf16*>(b));
            else
                convert(reinterpret_cast<const Bf16*>(a), how.width, reinterpret_cast<float*>(b));
        }
    }
}

}  // namespace
}  // namespace baton

// Rows of numbers to another place, which they do not share.
extern "C" void baton_copy(const baton::Copy* how, const char* from, int64_t rows, char* to) {
    const int64_t bytes = rows * how->outer * how->middle * how->width * how->to_bytes;
    baton::share(bytes >= baton::kWorthCopies, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++)
            baton::copy_row(*how, from + row * how->row * how->bytes,
                            to + row * how->to_row * how->to_bytes);
    });
}

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
