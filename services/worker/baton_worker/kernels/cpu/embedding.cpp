// Rows of a table, by number.

#include <cstdint>
#include <cstring>

// table [size, bytes] and out [count, bytes], contiguous. A number outside of the table gives ones
// in all bits, which is NaN in every format of floats: the sequence fails.
extern "C" void baton_look_up(const char* table, std::int64_t size, std::int64_t bytes,
                              const std::int64_t* numbers, std::int64_t count, char* out) {
    for (std::int64_t i = 0; i < count; ++i, out += bytes) {
        const std::int64_t number = numbers[i];
        if (number >= 0 && number < size) {
            std::memcpy(out, table + number * bytes, static_cast<std::size_t>(bytes));
        } else {
            std::memset(out, 0xff, static_cast<std::size_t>(bytes));
        }
    }
}

// Numbers outside of a table of so many rows become 0.
extern "C" void baton_listed(const std::int64_t* numbers, std::int64_t size, std::int64_t count,
                             std::int64_t* out) {
    for (std::int64_t i = 0; i < count; ++i)
        out[i] = numbers[i] >= 0 && numbers[i] < size ? numbers[i] : 0;
}
