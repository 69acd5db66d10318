// Attention over pages, for decode and prefill in one call.
//
// Pages hold head_dim numbers per key and value_dim per value of a head, or as many codes and 4
// bytes, in the order that their strides say (pages.h). A block of keys is packed from wherever
// they are, codes become numbers then, and from there on nothing differs.
//
// What a token's output is does not depend on the batch, on how its prompt was cut into chunks, or
// on the number of threads, to the last bit. That follows from three rules:
//   * Keys are taken in blocks, and blocks in partitions, both counted from position 0. A softmax
//     runs over the blocks of a partition in their order (online, Milakov and Gimelshein 2018,
//     arXiv:1805.02867), and partitions are merged in their order.
//   * Within a block, each (query, key) score is one chain of multiply-adds over the channels, and
//     each (query, channel) result one chain over the keys. A register tile holds many such chains
//     side by side and never splits one.
//   * A key that a query may not see weighs exactly 0, and a block of such keys changes nothing.
//
// A key head is read once for all query heads that share it.
//
// Where the CPU has tiles, both products of bfloat16 run on them. Such a chain takes what lies at
// even places and at odd ones apart, 32 at a time, whichever factor has the tile's rows: keys as
// they lie in their page where queries are few, else packed as they are without tiles.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "keys.h"
#include "register_tile.h"
#include "softmax.h"
#include "team.h"
#include "tile_attention.h"

namespace baton {
namespace {

constexpr int kQueryRows = 96;  // (token, head) pairs that use a packed block

// One piece of work: some query tokens of a row, one key head, the keys of some partitions.
struct Task {
    int32_t row, head, first, tokens;
    int32_t begin, end;  // keys; begin is a multiple of kPartition
    int32_t partial;     // index of the unfinished result; -1: the result is final
};

// Everything that tasks of one call share.
template <class T, class P>
struct Job {
    const Call& call;
    const Batch& batch;
    const T* query;
    int64_t query_stride;
    const P* pages;
    const Strides& strides;
    const float* sinks;
    int64_t sinks_stride;
    T* out;
    float* lse;
    int group;
    Width width;

    int tokens(int row) const { return batch.query_starts[row + 1] - batch.query_starts[row]; }
    int start(int row) const { return batch.lengths[row] - tokens(row); }
    int oldest(int position) const {
        const int windowed = call.window > 0 ? std::max(0, position - call.window + 1) : 0;
        return call.chunk > 0 ? std::max(windowed, position / call.chunk * call.chunk) : windowed;
    }
    int first(int row) const { return batch.ranges ? batch.ranges[2 * row] : 0; }
    int last(int row, int slot) const {
        return batch.ranges ? std::min(slot, batch.ranges[2 * row + 1] - 1) : slot;
    }
    // The last slot that the new token number `token` of a row may see.
    int last_of(int row, int token) const {
        const int own = start(row) + token;
        return last(row, batch.last_keys ? batch.last_keys[batch.query_starts[row] + token] : own);
    }
    // The last slot that any of `count` new tokens of a row may see.
    int newest(int row, int token, int count) const {
        int found = last_of(row, token + count - 1);
        if (batch.last_keys)
            for (int i = 0; i < count; i++) found = std::max(found, last_of(row, token + i));
        return found;
    }
    // The first slot that tokens from the one at `slot` on may see. In a tree each of them may be
    // as near to the context as the first.
    int lowest(int row, int slot) const {
        return std::max(first(row), oldest(batch.depths ? start(row) : slot));
    }
    // Element of the query row r of a task: rows go token by token, head by head.
    int64_t token(const Task& task, int r) const {
        return batch.query_starts[task.row] + task.first + r / group;
    }
    int head(const Task& task, int r) const { return task.head * group + r % group; }
    // The first key of a task that is read.
    int begin(const Task& task) const {
        const int oldest = lowest(task.row, start(task.row) + task.first) / kBlock * kBlock;
        return std::max(task.begin, oldest);
    }
    // Up to kBlock keys of a task.
    Located<P> keys(const Task& task, int from) const {
        const int end = std::min(from + kBlock, task.end);
        return {batch, pages, strides, task.row, task.head, from, std::max(from, end)};
    }
};

template <class T, class P>
std::vector<QueryView> views_of(const Job<T, P>& job, const Task& task) {
    std::vector<QueryView> views(size_t(task.tokens) * job.group);
    const int start = job.start(task.row), first = job.first(task.row);
    for (int r = 0; r < int(views.size()); r++) {
        const int slot = start + task.first + r / job.group;
        const int64_t token = job.token(task, r);
        const int position = job.batch.depths ? start + job.batch.depths[token] : slot;
        const uint64_t ancestors = job.batch.ancestors ? job.batch.ancestors[token] : ~0ull;
        const float slope = job.call.slopes ? job.call.slopes[job.head(task, r)] : 0.0f;
        const int oldest = job.oldest(position);
        const int last = job.last_of(task.row, task.first + r / job.group);
        views[r] = {position, oldest, first, last, ancestors, slope};
    }
    return views;
}

template <class X, class T, class P>
void copy_query(const Job<T, P>& job, const Task& task, int rows, float* to) {
    Reader<X, T> read(job.call.head_dim);
    const int stride = job.width.keys / kPerWord<X>;
    for (int r = 0; r < rows; r++) {
        const T* from = job.query + job.token(task, r) * job.query_stride +
                        int64_t(job.head(task, r)) * job.call.head_dim;
        for (int w = 0; w < stride; w += kWidth)
            store(to + int64_t(r) * stride + w, read(from, w * kPerWord<X>));
    }
}

// Whether a task's queries are one tile, so that keys need not be packed.
template <class X>
bool reads_keys_in_place(int rows) {
    return kTiled<X> && rows <= kRowsTogether;
}

// Calls with(r, n, state) for the rows [r, r + n) of a task that see something of a block.
template <int kMost, class With>
void for_seeing(const std::vector<QueryView>& views, int begin, int end, Softmax state, int dim,
                const With& with) {
    const int rows = int(views.size());
    for (int r = 0; r < rows; r += kMost) {
        const int n = std::min(kMost, rows - r);
        const auto blind = [&](const QueryView& view) { return view.sees_none(begin, end); };
        if (std::all_of(&views[r], &views[r] + n, blind)) continue;
        with(r, n, Softmax{state.most + r, state.total + r, state.sum + int64_t(r) * dim});
    }
}

// All query rows of a task to one block of keys. `next` is the block that comes after it.
template <class X, class T, class P>
void attend_block(const Job<T, P>& job, const Task& task, const std::vector<QueryView>& views,
                  const Room& room, int begin, const Located<P>& next, Softmax state) {
    const Located<P> here = job.keys(task, begin);
    const Width& width = job.width;
    const int end = begin + here.count;
    const int start = job.start(task.row), dim = width.values;
    const bool in_place = reads_keys_in_place<X>(int(views.size()));
    if (!in_place) pack_keys<X>(here, next, width.key, width.keys, room.keys);
    pack_values<X>(here, next, job.strides.value, width.value, dim, room.values);
    const bool tree = job.batch.depths != nullptr && end > start;
    const int32_t* depths = tree ? job.batch.depths + job.batch.query_starts[task.row] : nullptr;
    const Block block = {room.keys, room.values, begin, end - begin, depths, start};
    const int stride = width.keys / kPerWord<X>;
    const auto query = [&](int r) { return room.query + int64_t(r) * stride; };
#if defined(__AMX_BF16__)
    if constexpr (kTiled<X>) {
        return for_seeing<kTileRows>(views, begin, end, state, dim, [&](int r, int n, auto some) {
            alignas(64) float scores[kTileRows * kBlock];
            if (in_place)
                score_keys(here, next, job.strides.token, width, room, n, scores);
            else
                score_on_tiles<kBlock>(query(r), stride, room.keys, stride, scores);
            weigh_tile(n, job.call, &views[r], block, dim, some, scores);
        });
    }
#endif
    for_seeing<kTile>(views, begin, end, state, dim, [&](int r, int n, auto some) {
        attend_rows<X>(n, job.call, &views[r], query(r), stride, block, dim, some);
    });
}

// The scores of a query row as one: the sum of exp(score - most) is total. What was summed up
// without the sink, which is one more score, of a key whose value is zero, fades by `fade`.
struct Sum {
    float most, total, fade;
};

template <class T, class P>
Sum sum_of(const Job<T, P>& job, const Task& task, int r, Softmax state) {
    if (job.sinks == nullptr) return {state.most[r], state.total[r], 1.0f};
    const float sink = job.sinks[job.token(task, r) * job.sinks_stride + job.head(task, r)];
    const float most = std::max(sink, state.most[r]), fade = exp_one(state.most[r] - most);
    return {most, state.total[r] * fade + exp_one(sink - most), fade};
}

template <class T, class P>
void write(const Job<T, P>& job, const Task& task, int rows, Softmax state) {
    alignas(64) T padded[kWidth];
    const int width = job.width.value;
    for (int r = 0; r < rows; r++) {
        const int64_t place = job.token(task, r) * job.call.num_heads + job.head(task, r);
        const Sum whole = sum_of(job, task, r, state);
        // Only a range may leave a token nothing to see: then there is nothing, not 0 / 0.
        const bool nothing = job.batch.ranges != nullptr && whole.most == kHidden;
        const Vec share = set1(nothing ? 0.0f : whole.fade / whole.total);
        T* to = job.out + place * width;
        for (int d = 0; d < width; d += kWidth) {
            store(padded, load(state.sum + int64_t(r) * job.width.values + d) * share);
            std::copy_n(padded, std::min(kWidth, width - d), to + d);
        }
        if (job.lse) job.lse[place] = whole.most + std::log(whole.total);
    }
}

// All partitions of a task, one after the other. `partials` holds what other tasks merge; `after`
// is the task that this thread turns to then, or null.
template <class X, class T, class P>
void run(const Job<T, P>& job, const Task& task, const Task* after,
         const std::vector<Softmax>& partials) {
    const Width& width = job.width;
    const int rows = task.tokens * job.group, stride = width.keys / kPerWord<X>;
    const int dim = width.values;
    const size_t words = size_t(with_room(rows)) * stride;
    const size_t transposed = size_t(kRowsTogether) * stride;
    scratch.reset(words + transposed + size_t(kBlock) * (width.keys + dim) +
                  2 * softmax_size(rows, dim) + 64);
    const Room room = {scratch.take(words), scratch.take(transposed),
                       scratch.take(size_t(kBlock) * width.keys),
                       scratch.take(size_t(kBlock) * dim)};
    const Softmax part = task.partial < 0 ? take_softmax(scratch, rows, dim)
                                          : partials[size_t(task.partial)];
    Softmax whole = take_softmax(scratch, rows, dim), current = part;
    clear(whole, rows, dim);
    copy_query<X>(job, task, rows, room.query);
#if defined(__AMX_BF16__)
    const AttentionShapes shapes(std::min(rows, kTileRows));
    const std::conditional_t<kTiled<X>, Tiles, NoTiles> tiles(shapes);
    if (reads_keys_in_place<X>(rows)) transpose_queries(room.query, rows, stride, room.transposed);
#endif
    const std::vector<QueryView> views = views_of(job, task);
    const int oldest = job.begin(task);
    for (int begin = task.begin; begin < task.end; begin += kPartition) {
        clear(current, rows, dim);
        const int stop = std::min(begin + kPartition, task.end);
        for (int b = std::max(begin, oldest); b < stop; b += kBlock) {
            const bool last = b + kBlock >= task.end && after != nullptr;
            const Located<P> next =
                last ? job.keys(*after, job.begin(*after)) : job.keys(task, b + kBlock);
            attend_block<X>(job, task, views, room, b, next, current);
        }
        if (task.partial < 0) merge(whole, current, rows, dim);
    }
    if (task.partial < 0) write(job, task, rows, whole);
}

// The work of one call: tasks, and room for what some of them leave to be merged.
class Work {
   public:
    std::vector<Task> tasks;
    std::vector<Softmax> partials;
    int64_t products = 0;  // about how many multiply-adds

    template <class T, class P>
    explicit Work(const Job<T, P>& job) {
        const int threads = omp_get_max_threads();
        int64_t keys = 0;
        for (int row = 0; row < job.batch.rows; row++) keys += job.batch.lengths[row];
        if (threads > 1) split_keys_ = std::max<int64_t>(kPartition, keys / (4 * threads));
        for (int row = 0; row < job.batch.rows; row++)
            for (int head = 0; head < job.call.num_kv_heads; head++) add(job, row, head);
    }

    void make_room(Scratch& from, int group, int dim) {
        size_t floats = 0;
        for (const Task& task : tasks)
            if (task.partial >= 0) floats += softmax_size(task.tokens * group, dim);
        from.reset(floats);
        for (const Task& task : tasks)
            if (task.partial >= 0) partials.push_back(take_softmax(from, task.tokens * group, dim));
    }

   private:
    template <class T, class P>
    void add(const Job<T, P>& job, int row, int head) {
        const int tokens = job.tokens(row), most = std::max(1, kQueryRows / job.group);
        // The last tokens see the most keys: what takes longest starts first.
        for (int first = (tokens - 1) / most * most; first >= 0; first -= most) {
            const int some = std::min(most, tokens - first), start = job.start(row) + first;
            const int begin = job.lowest(row, start) / kPartition * kPartition;
            const int end = std::max(begin, job.newest(row, first, some) + 1);
            products += int64_t(end - begin) * job.width.keys * (some * job.group + 4);
            // A few tokens over many keys: only keys are left to divide among threads. Rows that
            // are short beside the others are not divided, which bounds the room for partials.
            const bool split = tokens <= most && end - begin > split_keys_;
            if (!split) tasks.push_back({row, head, first, some, begin, end, -1});
            for (int b = begin; split && b < end; b += kPartition)
                tasks.push_back(
                    {row, head, first, some, b, std::min(b + kPartition, end), num_partials_++});
        }
    }

    int64_t split_keys_ = std::numeric_limits<int64_t>::max();  // keys of one task
    int num_partials_ = 0;
};

thread_local Scratch shared_scratch;

// Merge what the tasks of one row and key head have left, beginning with task `i`.
template <class T, class P>
void finish(const Job<T, P>& job, const Work& work, size_t i) {
    const Task& first = work.tasks[i];
    const int rows = first.tokens * job.group;
    const int dim = job.width.values;
    scratch.reset(softmax_size(rows, dim));
    Softmax whole = take_softmax(scratch, rows, dim);
    clear(whole, rows, dim);
    for (; i < work.tasks.size(); i++) {
        const Task& task = work.tasks[i];
        if (task.row != first.row || task.head != first.head) break;
        merge(whole, work.partials[size_t(task.partial)], rows, dim);
    }
    write(job, first, rows, whole);
}

bool starts_split(const Work& work, int i) {
    const Task& task = work.tasks[size_t(i)];
    if (task.partial < 0) return false;
    if (i == 0) return true;
    const Task& before = work.tasks[size_t(i) - 1];
    return before.row != task.row || before.head != task.head;
}

constexpr int64_t kWorthThreads = 1 << 17;  // multiply-adds: some ten microseconds

template <class X, class T, class P>
void attend(const Call& call, const Batch& batch, const T* query, int64_t query_stride,
            const P* pages, const Strides& strides, const float* sinks, int64_t sinks_stride,
            T* out, float* lse) {
    const int group = call.num_heads / call.num_kv_heads;
    const Job<T, P> job{call,  batch,        query, query_stride, pages, strides,
                        sinks, sinks_stride, out,   lse,          group, Width(call)};
    Work work(job);
    work.make_room(shared_scratch, group, job.width.values);
    const int count = int(work.tasks.size());
    const bool use_threads = work.products >= kWorthThreads;
    share(use_threads, count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const Task* task = &work.tasks[size_t(i)];
            run<X>(job, *task, i + 1 < end ? task + 1 : nullptr, work.partials);
        }
    }, Pieces::kUneven);
    share(use_threads, count, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
            if (starts_split(work, int(i))) finish(job, work, size_t(i));
    }, Pieces::kUneven);
}

}  // namespace
}  // namespace baton

// query [T, num_heads, head_dim] with `query_stride` elements between tokens; out is contiguous,
// [T, num_heads, value_dim]; sinks [num_heads] in float, every `sinks_stride` elements those of a
// token, or null; lse [T, num_heads], for the logarithms of what the weights are parts of, or null;
// `rows` in place of the batch's own.
extern "C" void baton_attend(const baton::Call* call, const baton::Batch* batch, const void* query,
                             int64_t query_stride, const void* pages,
                             const baton::Strides* strides, const float* sinks,
                             int64_t sinks_stride, void* out, float* lse, int64_t rows) {
    baton::Batch some = *batch;
    some.rows = int32_t(rows);
    const auto run = [&](auto operand, auto element, auto kept) {
        using T = decltype(element);
        using P = decltype(kept);
        baton::attend<decltype(operand)>(
            *call, some, static_cast<const T*>(query), query_stride,
            static_cast<const P*>(pages), *strides, sinks, sinks_stride, static_cast<T*>(out),
            lse);
    };
    const auto choose = [&](auto operand, auto element) {
        if (call->codes == 1)
            run(operand, element, baton::Int8{});
        else if (call->codes == 2)
            run(operand, element, baton::Fp8{});
        else
            run(operand, element, element);
    };
    if (call->bytes == 4)
        choose(float{}, float{});
    else
        choose(baton::Fast{}, baton::Bf16{});
}
