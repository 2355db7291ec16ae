// Causal attention of one head over one sequence, a block of queries at a time, forward and backward.
//
// Keys after a block's last query, and before the document of its first, are left out. Of the forward pass only the
// logarithm of each query's sum is kept: the probabilities are computed again in the backward pass.
#pragma once
#include "pointwise.h"

namespace ISA {

constexpr long QUERY_BLOCK = 64;

template <class E> struct Attention {
    long length, width;   // of the sequence, of the head
    const int32_t* start;  // for each query, the first key of its document
    Matrix<E> query, key, value;
    Matrix<float> scores;  // QUERY_BLOCK rows
    Matrix<E> probabilities, score_grads;
    Workspace* workspace;

    float scale() const { return 1 / sqrtf(float(width)); }

    // Clears what lies behind an odd number of keys in the row's last word: a product takes it times zero, and it may be
    // a NaN that another block left there.
    static INLINE void end_row(E* row, long keys) {
        if (keys % PER_WORD<E>) store(row[keys], 0);
    }

    // Calls use(first query, number of queries, first key, number of keys) for each block.
    template <class Use> void for_blocks(const Use& use) const {
        for (long q = 0; q < length; q += QUERY_BLOCK) {
            const long end = q + QUERY_BLOCK < length ? q + QUERY_BLOCK : length;
            use(q, end - q, long(start[q]), end - start[q]);
        }
    }

    void compute_scores(long q, long queries, long k, long keys) const {
        const float factor = scale();
        product<E, false, true>(
            queries, keys, width, query.from(q), key.from(k), *workspace,
            [&](long row, long column, long count, const float* strip) {
                float* to = scores.row(row) + column;
#pragma GCC ivdep
                for (long j = 0; j < count; j++) to[j] = strip[j] * factor;
            }
        );
    }

    // out: the rows of this head; log_sums: one number per query, log_stride apart.
    void forward(Matrix<E> out, float* log_sums, long log_stride) const {
        for_blocks([&](long q, long queries, long k, long keys) {
            float inverse[QUERY_BLOCK];
            compute_scores(q, queries, k, keys);
            for (long i = 0; i < queries; i++) {
                const float* row = scores.row(i);
                E* to = probabilities.row(i);
                const long first = start[q + i] - k, end = q + i - k + 1;
                float most = row[first], sum = 0;
                for (long j = first; j < end; j++) most = row[j] > most ? row[j] : most;
                for (long j = 0; j < first; j++) store(to[j], 0);
#pragma GCC ivdep
                for (long j = first; j < end; j++) {
                    const float p = exponential(row[j] - most);
                    sum += p;
                    store(to[j], p);
                }
                for (long j = end; j < keys; j++) store(to[j], 0);
                end_row(to, keys);
                inverse[i] = 1 / sum;
                log_sums[(q + i) * log_stride] = most + logf(sum);
            }
            product<E, false, false>(
                queries, width, keys, probabilities, value.from(k), *workspace,
                [&](long row, long column, long count, const float* strip) {
                    E* to = out.row(q + row) + column;
                    const float factor = inverse[row];
#pragma GCC ivdep
                    for (long j = 0; j < count; j++) store(to[j], strip[j] * factor);
                }
            );
        });
    }

    // Adds to the gradients (float32, `length` rows of this head's width) of queries, keys and values.
    void backward(
        Matrix<E> out, Matrix<E> out_grad, const float* log_sums, long log_stride, Matrix<float> query_grad,
        Matrix<float> key_grad, Matrix<float> value_grad
    ) const {
        for_blocks([&](long q, long queries, long k, long keys) {
            const Matrix<E> block_grad = out_grad.from(q);
            compute_scores(q, queries, k, keys);
            for (long i = 0; i < queries; i++) {
                const float log_sum = log_sums[(q + i) * log_stride];
                const float* row = scores.row(i);
                E* to = probabilities.row(i);
                const long first = start[q + i] - k, end = q + i - k + 1;
                for (long j = 0; j < first; j++) store(to[j], 0);
#pragma GCC ivdep
                for (long j = first; j < end; j++) store(to[j], exponential(row[j] - log_sum));
                for (long j = end; j < keys; j++) store(to[j], 0);
            }
            float along[QUERY_BLOCK];
            for (long i = 0; i < queries; i++) {
                float sum = 0;
                for (long j = 0; j < width; j++) sum += load(out.row(q + i)[j]) * load(block_grad.row(i)[j]);
                along[i] = sum;
            }
            const float factor = scale();
            product<E, false, true>(
                queries, keys, width, block_grad, value.from(k), *workspace,
                [&](long row, long column, long count, const float* strip) {
                    E* to = score_grads.row(row) + column;
                    const E* p = probabilities.row(row) + column;
                    const float offset = along[row];
#pragma GCC ivdep
                    for (long j = 0; j < count; j++) store(to[j], load(p[j]) * (strip[j] - offset) * factor);
                    end_row(score_grads.row(row), keys);
                }
            );
            product<E, false, false>(
                queries, width, keys, score_grads, key.from(k), *workspace, add_rows(query_grad.from(q))
            );
            product<E, true, false>(
                keys, width, queries, score_grads, query.from(q), *workspace, add_rows(key_grad.from(k))
            );
            product<E, true, false>(
                keys, width, queries, probabilities, block_grad, *workspace, add_rows(value_grad.from(k))
            );
        });
    }
};

}  // namespace ISA
