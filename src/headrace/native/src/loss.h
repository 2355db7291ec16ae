// The loss of the head: logits exist for some rows at a time, and become their own gradient in place.
#pragma once
#include "sharing.h"

namespace ISA {

// Returns the cross-entropy of a row of logits at the target, and leaves them as they are.
template <class E> double cross_entropy(const E* logits, long n, long target) {
    float most = load(logits[0]), sum = 0;
    for (long j = 0; j < n; j++) most = load(logits[j]) > most ? load(logits[j]) : most;
    for (long j = 0; j < n; j++) sum += exponential(load(logits[j]) - most);
    return double(most) + log(double(sum)) - load(logits[target]);
}

// Turns a row of logits into `scale` times its gradient; returns the cross-entropy at the target.
template <class E> double cross_entropy_with_gradient(E* logits, long n, long target, float scale) {
    float most = load(logits[0]), sum = 0;
    for (long j = 0; j < n; j++) most = load(logits[j]) > most ? load(logits[j]) : most;
    const float chosen = load(logits[target]);
#pragma GCC ivdep
    for (long j = 0; j < n; j++) {
        const float p = exponential(load(logits[j]) - most);
        sum += p;
        store(logits[j], p);
    }
    const float factor = scale / sum;
    const float at_target = (exponential(chosen - most) / sum - 1) * scale;
#pragma GCC ivdep
    for (long j = 0; j < n; j++) store(logits[j], load(logits[j]) * factor);
    store(logits[target], at_target);
    return double(most) + log(double(sum)) - chosen;
}

// Adds the gradients of the head, writes those of its input to memory.normed_grad, and returns scale x the losses.
// Where no gradients are asked for, the losses are all.
template <class E>
double head_loss(const Task& task, Matrix<E> hidden, const Rows& rows, long num_rows, Memory<E>& memory) {
    const long width = task.shape->width, vocabulary = task.shape->vocabulary;
    const long num_chunks = Memory<E>::num_logit_chunks(*task.shape, task.sequences_at_once);
    const float* weight = task.weights[HEAD];
    double loss = 0;
    for (long chunk = 0; chunk < num_chunks; chunk++) {
        const long first = chunk * num_rows / num_chunks, count = (chunk + 1) * num_rows / num_chunks - first;
        const Matrix<E> inputs = hidden.from(first), logits = memory.logits;
        const Matrix<const float> weights{weight, width};
        product<E, false, true>(
            count, vocabulary, width, inputs, weights, memory.workspace, store_rows(logits, rows.offsets)
        );
        for (long i = 0; i < count; i++) {
            const bool counts = !rows.mask || rows.mask[first + i];
            const long target = rows.targets[first + i];
            if (task.gradients) {
                const float scale = counts ? task.scale : 0.0f;
                const double nats = cross_entropy_with_gradient(logits.row(i), vocabulary, target, scale);
                loss += counts ? nats : 0;
            } else if (counts) {
                loss += cross_entropy<E>(logits.row(i), vocabulary, target);
            }
        }
        if (!task.gradients) continue;
        product<E, false, false>(
            count, width, vocabulary, logits, weights, memory.workspace, store_rows(memory.normed_grad.from(first))
        );
        add_weight_gradient(task, width, vocabulary, count, inputs, logits, task.gradients[HEAD], memory.workspace);
    }
    return loss * task.scale;
}

}  // namespace ISA
