// The pages of each row of a step, and the tokens before each token: see kernels/recurrent/chains.py.

#include <algorithm>
#include <cstdint>

namespace baton {
namespace {

// Mirrored in kernels/recurrent/chains.py.
struct Layout {
    int64_t page_size, table_width;  // tokens of a page; pages of a row in the table
    int64_t taps;                    // of convolutions
};

struct Found {
    int64_t *starts, *stops, *pages, *firsts, *begins;  // see chains.h
    int64_t* earlier;                                   // [tokens, taps - 1] slots
    bool* missing;                                      // [tokens, taps - 1]
};

// A row of n tokens has at most n / page_size + 2 pages, one before its first token included: so its
// entries begin at a place that only the number of tokens before it decides.
void find_pages(const Layout& layout, int64_t row, int64_t begin, int64_t end, int64_t position,
                const int32_t* table, const Found& found) {
    const int64_t size = layout.page_size, count = end - begin;
    const bool carried = position > 0 && position % size == 0;
    const int64_t first_page = position / size - carried;
    const int64_t pages = count ? (position + count - 1) / size - first_page + 1 : 0;
    const int64_t entry = begin / size + 2 * row, entries = end / size + 2 * (row + 1) - entry;
    found.starts[row] = entry;
    found.stops[row] = entry + pages;
    for (int64_t i = 0; i < entries; i++) {
        const int64_t before = position - (first_page + i) * size;
        const bool used = i < pages;
        found.pages[entry + i] = used ? table[first_page + i] : 0;
        found.firsts[entry + i] = used ? std::clamp<int64_t>(before, 0, size) : -1;
        found.begins[entry + i] = used ? begin + std::clamp<int64_t>(-before, 0, count) : end;
    }
    found.begins[entry + entries] = end;
}

void find_earlier(const Layout& layout, int64_t begin, int64_t end, int64_t position,
                  const int32_t* table, const Found& found) {
    const int64_t size = layout.page_size, back = layout.taps - 1;
    for (int64_t token = begin; token < end; token++) {
        for (int64_t tap = 0; tap < back; tap++) {
            const int64_t source = position + token - begin - tap - 1;
            const int64_t place = std::max<int64_t>(source, 0);
            found.earlier[token * back + tap] = table[place / size] * size + place % size;
            found.missing[token * back + tap] = source < 0;
        }
    }
}

}  // namespace
}  // namespace baton

// query_starts [rows + 1], lengths [rows], page_table [rows, table_width].
extern "C" void baton_find_chains(const baton::Layout* layout, int64_t rows,
                                  const int32_t* query_starts, const int32_t* lengths,
                                  const int32_t* page_table, int64_t* starts, int64_t* stops,
                                  int64_t* pages, int64_t* firsts, int64_t* begins,
                                  int64_t* earlier, bool* missing) {
    const baton::Found found{starts, stops, pages, firsts, begins, earlier, missing};
    for (int64_t row = 0; row < rows; row++) {
        const int64_t begin = query_starts[row], end = query_starts[row + 1];
        const int64_t position = lengths[row] - (end - begin);
        const int32_t* table = page_table + row * layout->table_width;
        baton::find_pages(*layout, row, begin, end, position, table, found);
        baton::find_earlier(*layout, begin, end, position, table, found);
    }
}
