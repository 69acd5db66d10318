// Calls of kernels, made one after the other without Python in between.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace baton {
namespace {

constexpr std::size_t kMost = 12;  // arguments of a kernel; mirrored in kernels/cpu/call_recorder.py

using Argument = std::int64_t;  // or a pointer: the calling conventions of x86-64 pass both alike

struct Call {
    const void* function;
    Argument count;  // of its arguments
    Argument at;     // which argument says how much there is
    Argument rows;   // it counts rows, not tokens
    Argument each;   // what it says of one of them
    Argument arguments[kMost];
};

template <std::size_t>
using Each = Argument;

template <std::size_t... I>
void invoke(const void* function, const Argument* with, std::index_sequence<I...>) {
    reinterpret_cast<void (*)(Each<I>...)>(const_cast<void*>(function))(with[I]...);
}

using Invoke = void (*)(const void*, const Argument*);

template <std::size_t... N>
constexpr std::array<Invoke, sizeof...(N)> invokes(std::index_sequence<N...>) {
    return {[](const void* function, const Argument* with) {
        invoke(function, with, std::make_index_sequence<N>());
    }...};
}

constexpr auto kInvokes = invokes(std::make_index_sequence<kMost + 1>());

}  // namespace
}  // namespace baton

// `count` calls in order. `made` grows with each: a watching thread sees the progress.
extern "C" void baton_replay(const baton::Call* calls, std::int64_t count, std::int64_t tokens,
                             std::int64_t rows, std::int64_t* made) {
    for (std::int64_t i = 0; i < count; ++i) {
        const baton::Call& call = calls[i];
        baton::Argument with[baton::kMost];
        for (std::size_t at = 0; at < baton::kMost; ++at) with[at] = call.arguments[at];
        with[call.at] = call.each * (call.rows ? rows : tokens);
        baton::kInvokes[static_cast<std::size_t>(call.count)](call.function, with);
        __atomic_fetch_add(made, 1, __ATOMIC_RELAXED);
    }
}
