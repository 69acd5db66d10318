// The arguments of an attention call, and its block sizes.
#pragma once

#include <cstdint>
#include <limits>

namespace baton {
namespace {

constexpr int kBlock = 64;       // keys that are packed together
constexpr int kPartition = 256;  // keys that are accumulated before a merge
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The static facts of a layer; mirrored in attention/cpu.py.
struct Call {
    int32_t num_heads, num_kv_heads, head_dim, value_dim;
    int32_t window, chunk;  // 0: none, see AttentionCall
    float scale, softcap;   // softcap 0: none
    const float* slopes;    // per query head; may be null
    int32_t bytes;          // of an element: 2 is bfloat16, 4 is float
    int32_t codes;          // of the pages: 0 such elements, 1 Int8, 2 Fp8
};

// A ragged step; mirrored in attention/cpu.py. See AttentionBatch.
struct Batch {
    int32_t rows, page_size, table_width;
    const int32_t *query_starts, *lengths, *page_table;
    const int32_t* ranges;     // per row [from, to) of the keys that take part; may be null: all
    const uint64_t* ancestors;  // per token, see attention/tree_mask.py; may be null: no row is a tree
    const int32_t* depths;     // per token
    const int32_t* last_keys;  // per token, the last slot that it sees; may be null: its own
};

int round_up(int x, int to) { return (x + to - 1) / to * to; }

}  // namespace
}  // namespace baton
