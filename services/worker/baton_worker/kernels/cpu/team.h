// Threads that share loops.
//
// A parallel region of OpenMP ends with a barrier: a thread that is descheduled, because other
// services need the cores too, delays all threads. Here the caller waits only for pieces that have
// been started: caller and helpers take pieces of a loop, and a late helper finds none.
#pragma once

#include <immintrin.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

namespace baton {

// How much of what is left a thread takes at once: its share, where all items take as long and
// neighbours are faster together, or half of it.
enum class Pieces { kEven, kUneven };

class Team {
  public:
    // The team of the process: g++ keeps one such variable however many libraries define it. It
    // is never deleted, since its helpers run until the process ends.
    static Team& get() {
        static std::atomic<Team*> team{nullptr};
        static const bool made = [] {
            // A child process has no helpers, and maybe a lock that one of them held: its own team.
            const auto make = [] { team.store(new Team); };
            make();
            return pthread_atfork(nullptr, nullptr, make) == 0;
        }();
        (void)made;
        return *team.load(std::memory_order_relaxed);
    }

    // body(begin, end) for pieces of [0, items) in any order, on as many threads as OpenMP would
    // use. Runs it here, in one piece, while the team works for another thread.
    template <class Body>
    void share(std::int64_t items, Pieces pieces, const Body& body) {
        const int threads = std::min(omp_get_max_threads(), kMostThreads);
        if (threads < 2 || items < 2 || items >= kClosed || busy_.exchange(true)) {
            body(std::int64_t{0}, items);
            return;
        }
        grow(threads - 1);
        run(items, threads, pieces, &call<Body>, &body);
        busy_.store(false);
    }

  private:
    using Function = void (*)(const void* body, std::int64_t begin, std::int64_t end);
    static constexpr int kMostThreads = 256;
    static constexpr std::int64_t kClosed = 0xffffffff;
    // How long a helper looks out for the next loop before it sleeps, in pauses of some ten
    // nanoseconds: longer than from one product of a step to the next.
    static constexpr int kPauses = 10000;
    static constexpr int kPausesToYield = 64;

    template <class Body>
    static void call(const void* body, std::int64_t begin, std::int64_t end) {
        (*static_cast<const Body*>(body))(begin, end);
    }

    static std::uint64_t loop_of(std::uint64_t ticket) { return ticket >> 32; }
    static std::int64_t next_of(std::uint64_t ticket) { return ticket & 0xffffffff; }

    void run(std::int64_t items, int threads, Pieces pieces, Function function, const void* body) {
        const std::uint64_t loop = loop_of(ticket_.load()) + 1;
        // Closed while it changes: a thread still on the last loop must not take from this one.
        ticket_.store(loop << 32 | kClosed);
        items_.store(items);
        threads_.store(threads);
        parts_.store(pieces == Pieces::kEven ? threads : 2 * threads);
        function_.store(function);
        body_.store(body);
        left_.store(items);
        ticket_.store((loop + 1) << 32);
        if (sleeping_.load() > 0) wake();
        work(loop + 1);
        for (int i = 1; left_.load(std::memory_order_acquire) > 0; ++i) pause(i);
    }

    // Take pieces of a loop until there are none, large ones first.
    void work(std::uint64_t loop) {
        std::uint64_t ticket = ticket_.load();
        while (loop_of(ticket) == loop) {
            const std::int64_t first = next_of(ticket), left = items_.load() - first;
            if (left <= 0) return;
            const Function function = function_.load();
            const void* body = body_.load();
            const std::int64_t parts = parts_.load(), piece = (left + parts - 1) / parts;
            // Succeeds only if the loop is still the one whose fields have been read.
            if (!ticket_.compare_exchange_weak(ticket, ticket + piece)) continue;
            function(body, first, first + piece);
            left_.fetch_sub(piece, std::memory_order_release);
            ticket = ticket_.load();
        }
    }

    void help(int number) {
        for (std::uint64_t seen = 0;;) {
            seen = await(seen);
            if (number < threads_.load()) work(seen);
        }
    }

    // The number of the next open loop.
    std::uint64_t await(std::uint64_t seen) {
        std::uint64_t ticket = 0;
        const auto is_new = [&] {
            ticket = ticket_.load();
            return loop_of(ticket) != seen && next_of(ticket) != kClosed;
        };
        for (int i = 1; i <= kPauses; ++i, pause(i)) {
            if (is_new()) return loop_of(ticket);
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        awake_.wait(lock, is_new);
        sleeping_.fetch_sub(1);
        return loop_of(ticket);
    }

    void wake() {
        { const std::lock_guard<std::mutex> lock(mutex_); }
        awake_.notify_all();
    }

    // Yields now and then: the thread that is waited for may need this very core.
    static void pause(int count) {
        _mm_pause();
        if (count % kPausesToYield == 0) sched_yield();
    }

    // Helpers take no signals: those are for the thread that runs Python. Without a helper the
    // work is done all the same.
    void grow(int helpers) {
        if (helpers <= helpers_) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (; helpers_ < helpers; ++helpers_) {
                std::thread(&Team::help, this, helpers_ + 1).detach();
            }
        } catch (const std::system_error&) {
            // The system gives no more threads.
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    // The number of a loop above the next of its items to be taken.
    std::atomic<std::uint64_t> ticket_{kClosed};
    std::atomic<std::int64_t> items_{0};
    std::atomic<std::int64_t> left_{0};
    std::atomic<int> threads_{1};
    std::atomic<int> parts_{1};  // what is left is divided by them, and one taken
    std::atomic<Function> function_{nullptr};
    std::atomic<const void*> body_{nullptr};
    std::atomic<bool> busy_{false};
    std::atomic<int> sleeping_{0};
    std::mutex mutex_;
    std::condition_variable awake_;
    int helpers_ = 0;
};

// body(begin, end) over [0, items): shared where that is `worth` more than it costs.
template <class Body>
void share(bool worth, std::int64_t items, const Body& body, Pieces pieces = Pieces::kEven) {
    if (worth) {
        Team::get().share(items, pieces, body);
    } else {
        body(std::int64_t{0}, items);
    }
}

}  // namespace baton
