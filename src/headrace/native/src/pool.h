// Threads that wait for work, created once: the caller is thread 0 of them.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "network.h"

class Pool {
public:
    explicit Pool(int num_threads);
    ~Pool();
    // Calls work(thread) in every thread and returns when all are done.
    void run(const std::function<void(int)>& work);
    int size() const { return int(workers.size()) + 1; }

private:
    void serve(int thread);

    std::vector<std::thread> workers;
    const std::function<void(int)>* work = nullptr;
    std::atomic<uint32_t> round{0}, num_busy{0};
    bool is_over = false;
};

struct Turns {
    struct alignas(64) Count {
        std::atomic<uint32_t> ended{0};
    };
    explicit Turns(long num_threads) : counts(num_threads) {}
    std::vector<Count> counts;  // of the turns that each thread has ended
};

// Returns the pool of this process with that many threads. After a fork the child gets threads of its own.
Pool& pool_of(int num_threads);
