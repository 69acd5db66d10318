// The tiles of AMX (Intel's Software Developer's Manual, volume 1, chapter 18): one instruction
// takes sixteen rows times sixteen columns for 32 values of k.
#pragma once

#if defined(__AMX_BF16__)

#include <immintrin.h>

#include <cstdint>

namespace baton {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row at most

// The shapes of eight tiles, as the instruction that sets them reads them.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};

    void set(int tile, int its_rows, int its_row_bytes) {
        rows[tile] = static_cast<std::uint8_t>(its_rows);
        row_bytes[tile] = static_cast<std::uint16_t>(its_row_bytes);
    }
};

// The tiles of this thread, until the end of the scope.
class Tiles {
  public:
    explicit Tiles(const TileShapes& shapes) {
        // The compiler knows of a part only of what this reads.
        asm volatile("" ::"r"(&shapes) : "memory");
        _tile_loadconfig(&shapes);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};

// For what is written once for arithmetic with tiles and without.
struct NoTiles {
    explicit NoTiles(const TileShapes&) {}
};

}  // namespace
}  // namespace baton

#endif
