// The memory of one thread, laid out once for a shape: what a forward pass keeps, and what passes need on the way.
#pragma once
#include "attention.h"
#include "network.h"

namespace ISA {

// Hands out parts of one block; without a block it counts the bytes. Every part begins on a cache line.
struct Arena {
    char* base;
    long used = 0;

    template <class T> T* take(long count) {
        T* part = base ? (T*)(base + used) : nullptr;
        used += (count * long(sizeof(T)) + 63) / 64 * 64;
        return part;
    }
    // Rows are a whole number of 32 bytes, so that words of two numbers never cross their end; what lies beyond the
    // width stays zero. An odd number of cache lines keeps rows from sharing a set of the cache.
    template <class T> Matrix<T> matrix(long rows, long width) {
        const long bytes = (width * long(sizeof(T)) + 31) / 32 * 32;
        const long stride = (bytes >= 512 && bytes % 128 == 0 ? bytes + 64 : bytes) / long(sizeof(T));
        return {take<T>(rows * stride), stride};
    }
    // What products of numbers of type E need, with sums of up to `most_k` terms.
    template <class E> Workspace workspace(long most_k) {
        return {
            take<uint32_t>(PACKED_WORDS + PANEL * Tiles<E>::packed_words(most_k)),
            take<uint32_t>(Tiles<E>::row_words(most_k)),
            take<float>(Tiles<E>::ROWS * STRIP_STRIDE),
        };
    }
};

template <class E> struct KeptLayer {
    Matrix<E> attention_normed, qkv, attended, feed_normed, up;
    float *attention_factor, *feed_factor;  // of the norms, by row
    float* log_sums;                        // of attention, by row and head
};

template <class E> struct Memory {
    KeptLayer<E>* layers;
    int32_t *document_start, *position;  // of each row, within its sequence
    Matrix<float> stream, stream_grad;   // what all layers add to, and its gradient
    Matrix<float> normed_grad;
    Matrix<E> normed, gated, up_grad, qkv_grad, attended_grad, rounded_grad;
    Matrix<E> logits;
    Matrix<E> final_normed;
    float* final_factor;
    Matrix<E> query, key;  // of one head, normalised and rotated; qwen3 only
    float *head_row, *head_row_grad;
    Matrix<float> query_grad, key_grad, value_grad;  // of one head
    Matrix<float> scores;
    Matrix<E> probabilities, score_grads;
    Workspace workspace;
    long bytes;

    // The number of parts in which the rows of a round go through the head.
    static long num_logit_chunks(const Shape& shape, long sequences_at_once) {
        const long fitting = LOGIT_BYTES / (shape.vocabulary * long(sizeof(E))), most = fitting < 64 ? 64 : fitting;
        return (sequences_at_once * shape.length + most - 1) / most;
    }

    Memory(const Shape& shape, long sequences_at_once, void* base) {
        const long rows = sequences_at_once * shape.length, width = shape.width, length = shape.length;
        const long head = shape.head_width();
        Arena arena{(char*)base};
        layers = arena.take<KeptLayer<E>>(shape.num_layers);
        for (long l = 0; l < shape.num_layers; l++) {
            KeptLayer<E> layer;
            layer.attention_normed = arena.matrix<E>(rows, width);
            layer.qkv = arena.matrix<E>(rows, 3 * width);
            layer.attended = arena.matrix<E>(rows, width);
            layer.feed_normed = arena.matrix<E>(rows, width);
            layer.up = arena.matrix<E>(rows, shape.up_width());
            layer.attention_factor = arena.take<float>(rows);
            layer.feed_factor = arena.take<float>(rows);
            layer.log_sums = arena.take<float>(rows * shape.num_heads);
            if (base) layers[l] = layer;
        }
        document_start = arena.take<int32_t>(rows);
        position = arena.take<int32_t>(rows);
        stream = arena.matrix<float>(rows, width);
        stream_grad = stream;  // the stream itself is done with before the backward pass begins
        normed_grad = arena.matrix<float>(rows, width);
        normed = arena.matrix<E>(rows, width);
        const long feed_begin = arena.used;
        gated = arena.matrix<E>(rows, shape.feed_forward);
        up_grad = arena.matrix<E>(rows, shape.up_width());
        const long feed_end = arena.used;
        // Attention's gradients come after those of the feed-forward part and take their place, unless padding is read
        // with the last number of a row: there, nothing may lie but zeros.
        if (shape.feed_forward % 2 == 0 && head % 2 == 0) arena.used = feed_begin;
        qkv_grad = arena.matrix<E>(rows, 3 * width);
        attended_grad = arena.matrix<E>(rows, width);
        if (arena.used < feed_end) arena.used = feed_end;
        rounded_grad = arena.matrix<E>(rows, width);
        const long chunks = num_logit_chunks(shape, sequences_at_once);
        logits = arena.matrix<E>((rows + chunks - 1) / chunks, shape.vocabulary);
        final_normed = arena.matrix<E>(rows, width);
        final_factor = arena.take<float>(rows);
        query = arena.matrix<E>(length, head);
        key = arena.matrix<E>(length, head);
        head_row = arena.take<float>(head);
        head_row_grad = arena.take<float>(head);
        query_grad = arena.matrix<float>(length, head);
        key_grad = arena.matrix<float>(length, head);
        value_grad = arena.matrix<float>(length, head);
        scores = arena.matrix<float>(QUERY_BLOCK, length);
        probabilities = arena.matrix<E>(QUERY_BLOCK, length);
        score_grads = arena.matrix<E>(QUERY_BLOCK, length);
        long most_k = shape.vocabulary;
        const long others[] = {3 * width, shape.up_width(), rows, length};
        for (long k : others) most_k = k > most_k ? k : most_k;
        workspace = arena.workspace<E>(most_k);
        bytes = arena.used;
    }

    static constexpr long LOGIT_BYTES = 12 << 20;
};

}  // namespace ISA
