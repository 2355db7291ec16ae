// What the parts of the library agree on: the shape of a network, its tensors, a batch, the work of a thread.
#pragma once
#include <cstdint>

enum Kind : int32_t { GPT2 = 0, QWEN3 = 1 };

struct Shape {
    int32_t kind, num_layers, width, num_heads, feed_forward, vocabulary, context, length, is_tied, is_bfloat16;

    long head_width() const { return width / num_heads; }
    long up_width() const { return kind == QWEN3 ? 2L * feed_forward : feed_forward; }  // of gate and up together
};

// Tensors are given as one array of pointers: those of the network, then those of each layer. None where it has none.
enum NetworkTensor { EMBEDDING, POSITIONS, HEAD, NORM, NORM_BIAS, NUM_NETWORK_TENSORS };
enum LayerTensor {
    ATTENTION_NORM, ATTENTION_NORM_BIAS, QKV, QKV_BIAS, QUERY_NORM, KEY_NORM, ATTENTION_OUT, ATTENTION_OUT_BIAS,
    FEED_NORM, FEED_NORM_BIAS, UP, UP_BIAS, DOWN, DOWN_BIAS, NUM_LAYER_TENSORS
};
template <class T> inline T* layer_tensor(T* const* tensors, long layer, LayerTensor which) {
    return tensors[NUM_NETWORK_TENSORS + layer * NUM_LAYER_TENSORS + which];
}

// The rows of one thread. All but inputs and targets may be missing; without keys of the sequences, nothing is dropped.
struct Rows {
    const int32_t *inputs, *targets, *documents;
    const uint8_t* mask;
    const uint32_t* keys;
    const float* offsets;  // added to the logits, one for each token of the vocabulary
    double dropout;
    long num_sequences;

    Rows part(long first, long end, long length) const {
        const long offset = first * length;
        return {inputs + offset, targets + offset, documents ? documents + offset : nullptr,
                mask ? mask + offset : nullptr, keys ? keys + first : nullptr, offsets, dropout, end - first};
    }
};

// The turns in which threads add to gradients that they share. Each gradient is cut into as many slices as there are
// threads; thread t begins with slice t, and goes on to the next one when the thread after it has left that. So nobody
// waits while all are equally fast, and every number is added in one order, whatever happens.
struct Turns;
void wait_for_turn(Turns&, int thread);
void end_turn(Turns&, int thread);

// All that one thread needs to add the gradients of its rows.
struct Task {
    const Shape* shape;
    const float* const* weights;
    float* const* gradients;  // none where only the loss is asked for
    const float* rotary;  // for each position, cosines and then sines of half of a head's width; qwen3 only
    Rows rows;
    long num_rounds, sequences_at_once;  // the rows are computed in so many parts, each of at most so many sequences
    float scale;
    void* memory;
    int thread, num_sharing;  // how many threads share the gradients of matrices: all, or 1 if each has its own
    Turns* turns;
};

struct Result {
    double loss;             // scale x the sum of losses
    double forward_seconds;  // of the time that it took
};

// Matrices that are to be orthogonalised, one after the other in memory (orthogonal.h).
struct Matrices {
    void* data;
    long rows, columns;
    const float* polynomials;  // three coefficients for each iteration
    long num_polynomials;
    int32_t is_bfloat16, is_by_gram;  // if not by the Gram matrix, all iterations multiply the matrices themselves
};

// The entry points of the code for one instruction set.
struct Instructions {
    long (*memory_bytes)(const Shape&, long sequences_at_once);
    Result (*add_gradients)(const Task&);
    long (*orthogonaliser_bytes)(const Matrices&);
    void (*orthogonalise)(const Matrices&, long number, void* memory);  // one of them
};
