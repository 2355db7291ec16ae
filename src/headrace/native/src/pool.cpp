#include "pool.h"

#include <unistd.h>

namespace {

// Turns of waiting before a thread sleeps: about as long as falling asleep and waking up takes (machine/waiting.py).
constexpr int SPINS = 2000;

void wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; i < SPINS; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

// Before its turn number n, a thread waits until the next thread has ended n turns: the slice is free then.
void wait_for_turn(Turns& turns, int thread) {
    const std::atomic<uint32_t>& next = turns.counts[(thread + 1) % turns.counts.size()].ended;
    const uint32_t own = turns.counts[thread].ended.load(std::memory_order_relaxed);
    for (uint32_t ended; int32_t((ended = next.load(std::memory_order_acquire)) - own) < 0;) wait_while(next, ended);
}

void end_turn(Turns& turns, int thread) {
    turns.counts[thread].ended.fetch_add(1, std::memory_order_release);
    turns.counts[thread].ended.notify_all();
}

Pool::Pool(int num_threads) {
    for (int i = 1; i < num_threads; i++) workers.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
    is_over = true;
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
    for (std::thread& worker : workers) worker.join();
}

void Pool::run(const std::function<void(int)>& given) {
    work = &given;
    num_busy.store(uint32_t(workers.size()), std::memory_order_relaxed);
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
    given(0);
    for (uint32_t busy; (busy = num_busy.load(std::memory_order_acquire));) wait_while(num_busy, busy);
}

void Pool::serve(int thread) {
    for (uint32_t seen = 0;; seen++) {
        wait_while(round, seen);
        if (is_over) return;
        (*work)(thread);
        if (num_busy.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy.notify_one();
    }
}

Pool& pool_of(int num_threads) {
    static Pool* pool = nullptr;  // never ended with the process: a fork that exits would wait for threads it has not
    static pid_t owner = 0;
    if (owner != getpid()) pool = nullptr;  // its threads stayed in the parent
    if (!pool || pool->size() != num_threads) {
        delete pool;
        pool = new Pool(num_threads);
    }
    owner = getpid();
    return *pool;
}
