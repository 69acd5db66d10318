// The tile instructions of AMX, in plain C++: what the pseudocode of Intel's Software Developer's
// Manual says of them, and an abort where a processor would fault.
//
// `-include` this file with `-D__AMX_TILE__ -D__AMX_BF16__` to run tiles on a CPU that has none.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps

namespace tiles_in_software {

struct Tile {
    int rows = 0, row_bytes = 0;
    std::uint8_t bytes[16][64] = {};
};

struct State {
    bool configured = false;
    Tile tiles[8];
};

inline State& state() {
    static thread_local State found;
    return found;
}

inline void demand(bool holds) {
    if (!holds) std::abort();
}

inline Tile& tile(int number) {
    demand(state().configured && state().tiles[number].rows > 0);
    return state().tiles[number];
}

inline void configure(const void* from) {
    std::uint8_t bytes[64];
    std::memcpy(bytes, from, sizeof bytes);
    demand(bytes[0] == 1 && bytes[1] == 0);
    for (int i = 2; i < 16; ++i) demand(bytes[i] == 0);
    state() = State{};
    state().configured = true;
    for (int i = 0; i < 8; ++i) {
        Tile& t = state().tiles[i];
        t.rows = bytes[48 + i];
        t.row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i];
        demand(t.rows <= 16 && t.row_bytes <= 64 && (t.rows > 0) == (t.row_bytes > 0));
    }
}

inline void release() { state() = State{}; }

inline void clear(int number) { std::memset(tile(number).bytes, 0, sizeof Tile::bytes); }

inline void load(int number, const void* from, std::int64_t stride) {
    Tile& t = tile(number);
    clear(number);
    for (int row = 0; row < t.rows; ++row) {
        std::memcpy(t.bytes[row], static_cast<const char*>(from) + row * stride, t.row_bytes);
    }
}

inline void store(int number, void* to, std::int64_t stride) {
    const Tile& t = tile(number);
    for (int row = 0; row < t.rows; ++row) {
        std::memcpy(static_cast<char*>(to) + row * stride, t.bytes[row], t.row_bytes);
    }
}

// Numbers too small for a whole mantissa count as zero, before and after.
inline float flush(float x) {
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

inline float number(const Tile& t, int row, int at) {
    std::uint16_t half;
    std::memcpy(&half, t.bytes[row] + 2 * at, sizeof half);
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return flush(value);
}

inline void multiply(int sums, int left, int right) {
    Tile& c = tile(sums);
    const Tile &a = tile(left), &b = tile(right);
    demand(sums != left && sums != right && left != right);
    demand(a.rows == c.rows && b.row_bytes == c.row_bytes && a.row_bytes / 4 == b.rows);
    demand(a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0);
    for (int m = 0; m < c.rows; ++m) {
        for (int n = 0; n < c.row_bytes / 4; ++n) {
            float even = 0, odd = 0, sum;
            for (int k = 0; k < b.rows; ++k) {
                even = flush(std::fma(number(a, m, 2 * k), number(b, k, 2 * n), even));
                odd = flush(std::fma(number(a, m, 2 * k + 1), number(b, k, 2 * n + 1), odd));
            }
            std::memcpy(&sum, c.bytes[m] + 4 * n, sizeof sum);
            sum = flush(flush(sum) + flush(even + odd));
            std::memcpy(c.bytes[m] + 4 * n, &sum, sizeof sum);
        }
    }
}

}  // namespace tiles_in_software

#define _tile_loadconfig tiles_in_software::configure
#define _tile_release tiles_in_software::release
#define _tile_zero tiles_in_software::clear
#define _tile_loadd tiles_in_software::load
#define _tile_stored tiles_in_software::store
#define _tile_dpbf16ps tiles_in_software::multiply
