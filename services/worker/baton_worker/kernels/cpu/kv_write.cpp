// Rows of numbers to their places in pages.

#include <cstdint>
#include <cstring>

#include "team.h"

namespace baton {
namespace {

constexpr int64_t kWorthThreads = 1 << 17;  // bytes: some ten microseconds

// Mirrored in kernels/kv_pages.py. Sizes and strides in bytes.
struct Pages {
    int64_t page_size;             // tokens
    int64_t planes, heads, width;  // of a token
    int64_t row, row_plane, row_head;
    int64_t page, token, plane, head;
};

void put(const Pages& how, const char* row, char* to) {
    for (int64_t plane = 0; plane < how.planes; plane++)
        for (int64_t head = 0; head < how.heads; head++)
            std::memcpy(to + plane * how.plane + head * how.head,
                        row + plane * how.row_plane + head * how.row_head, size_t(how.width));
}

}  // namespace
}  // namespace baton

// rows [tokens, planes, heads, width] to their slots [tokens], page * page_size + offset.
extern "C" void baton_scatter(const baton::Pages* how, const char* rows, int64_t tokens,
                              const int64_t* slots, char* pages) {
    const int64_t bytes = tokens * how->planes * how->heads * how->width;
    baton::share(bytes >= baton::kWorthThreads, tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; t++) {
            const int64_t page = slots[t] / how->page_size, offset = slots[t] % how->page_size;
            baton::put(*how, rows + t * how->row, pages + page * how->page + offset * how->token);
        }
    });
}
