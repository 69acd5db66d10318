// Sequences whose pages are walked in order, by kernels of states that only a walk can find.
#pragma once

#include <cstdint>

namespace baton {

// Mirrored in kernels/recurrent/ssm_states.py.
struct Chains {
    const int64_t* starts;  // [sequences]: of each its first page
    const int64_t* stops;   // [sequences]: of each the end of its pages
    const int64_t* pages;   // [entries]
    const int64_t* firsts;  // [entries]: which token asks the first query, or how many they are
    const int64_t* begins;  // [entries + 1]: of each its first query
};

}  // namespace baton
