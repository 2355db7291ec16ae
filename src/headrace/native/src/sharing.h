// Adding to gradients that all threads share, slice by slice in turns (network.h).
#pragma once
#include "memory.h"

namespace ISA {

// Calls add(first, end) for slices of the rows of a gradient, each when it is this thread's turn.
template <class Add> INLINE void in_turns(const Task& task, long num_rows, const Add& add) {
    if (task.num_sharing == 1) return add(0, num_rows);
    for (long phase = 0; phase < task.num_sharing; phase++) {
        const long slice = (task.thread + phase) % task.num_sharing;
        wait_for_turn(*task.turns, task.thread);
        add(num_rows * slice / task.num_sharing, num_rows * (slice + 1) / task.num_sharing);
        end_turn(*task.turns, task.thread);
    }
}

// Adds grad^T x to the gradient of a weight of out x in numbers.
template <class E>
void add_weight_gradient(
    const Task& task, long in, long out, long num_rows, Matrix<E> x, Matrix<E> grad, float* total, Workspace& workspace
) {
    in_turns(task, out, [&](long first, long end) {
        product<E, true, false>(
            end - first, in, num_rows, Matrix<E>{grad.data + first, grad.stride}, x, workspace,
            add_rows(Matrix<float>{total + first * in, in})
        );
    });
}

}  // namespace ISA
