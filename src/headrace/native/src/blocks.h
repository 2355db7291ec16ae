// A whole forward and backward pass of some sequences, layer by layer, into one thread's gradients.
//
// Of each layer the normalised inputs, queries, keys and values, attention's output and the input of the gate are kept;
// what follows from them by a cheap formula (the norm's weights, the gate) is computed again in the backward pass.
#pragma once
#include <time.h>

#include "dropout.h"
#include "loss.h"

namespace ISA {

template <class E> struct Pass {
    const Task& task;
    const Shape& shape;
    Memory<E> memory;
    const bool is_qwen;
    const long width, feed_forward, up_width, head;
    const Dropout dropout;
    long num_rows = 0;
    Rows rows{};  // of the sequences that are being computed

    explicit Pass(const Task& task)
        : task(task), shape(*task.shape), memory(*task.shape, task.sequences_at_once, task.memory),
          is_qwen(shape.kind == QWEN3), width(shape.width), feed_forward(shape.feed_forward),
          up_width(shape.up_width()), head(shape.head_width()), dropout(task.rows.dropout) {}

    Result run() {
        Result result{0, 0};
        const long total = task.rows.num_sequences, rounds = task.num_rounds;
        for (long i = 0; i < rounds; i++) run_sequences(i * total / rounds, (i + 1) * total / rounds, result);
        return result;
    }

    void run_sequences(long begin, long end, Result& result) {
        const double began = now();
        num_rows = (end - begin) * shape.length;
        rows = task.rows.part(begin, end, shape.length);
        find_documents();
        embed();
        for (long l = 0; l < shape.num_layers; l++) forward_layer(l);
        normalise_rows(final_norm());
        drop_rows(AT_HEAD, memory.normed);
        result.loss += head_loss(task, memory.normed, rows, num_rows, memory);
        result.forward_seconds += now() - began;
        if (!task.gradients) return;
        memset(memory.stream_grad.data, 0, sizeof(float) * memory.stream_grad.stride * num_rows);
        drop_rows(AT_HEAD, memory.normed_grad);
        norm_backward(final_norm());
        for (long l = shape.num_layers; l-- > 0;) backward_layer(l);
        embed_backward();
    }

    static double now() {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
    }

    const float* weight(long layer, LayerTensor which) const { return layer_tensor(task.weights, layer, which); }
    // Gradients are missing where only the loss is asked for.
    float* gradient(long layer, LayerTensor which) const {
        return task.gradients ? layer_tensor(task.gradients, layer, which) : nullptr;
    }
    float* gradient(NetworkTensor which) const { return task.gradients ? task.gradients[which] : nullptr; }

    // Sites of dropout: what goes into the blocks, and what goes into the head.
    enum Site : uint32_t { AT_BLOCKS, AT_HEAD };

    template <class T> void drop_rows(Site site, Matrix<T> x) const {
        for (long r = 0; rows.keys && r < num_rows; r++)
            dropout.apply(rows.keys[r / shape.length], r % shape.length, site, x.row(r), width);
    }

    // The first key that each token sees in its sequence, and its position in its document.
    void find_documents() {
        const long length = shape.length;
        for (long r = 0; r < num_rows; r++) {
            const long place = r % length;
            const bool is_first = !place || (rows.documents && rows.documents[r] != rows.documents[r - 1]);
            memory.document_start[r] = is_first ? place : memory.document_start[r - 1];
            memory.position[r] = place - memory.document_start[r];
        }
    }

    void embed() {
        for (long r = 0; r < num_rows; r++) {
            const float* token = task.weights[EMBEDDING] + rows.inputs[r] * width;
            float* to = memory.stream.row(r);
            memcpy(to, token, sizeof(float) * width);
            if (!task.weights[POSITIONS]) continue;
            const float* place = task.weights[POSITIONS] + memory.position[r] * width;
            for (long j = 0; j < width; j++) to[j] += place[j];
        }
        drop_rows(AT_BLOCKS, memory.stream);
    }

    void embed_backward() {
        drop_rows(AT_BLOCKS, memory.stream_grad);
        scatter(rows.inputs, shape.vocabulary, task.gradients[EMBEDDING]);
        if (task.gradients[POSITIONS]) scatter(memory.position, shape.length, task.gradients[POSITIONS]);
    }

    // Adds the stream's gradient to the rows of a table that were looked up.
    void scatter(const int32_t* looked_up, long table_rows, float* table) {
        in_turns(task, table_rows, [&](long first, long end) {
            for (long r = 0; r < num_rows; r++) {
                if (looked_up[r] < first || looked_up[r] >= end) continue;
                const float* from = memory.stream_grad.row(r);
                float* to = table + looked_up[r] * width;
#pragma GCC ivdep
                for (long j = 0; j < width; j++) to[j] += from[j];
            }
        });
    }

    // A norm as the pass needs it: its tensors, and what is kept of its input.
    struct Norm {
        const float *weight, *bias;
        float *weight_grad, *bias_grad;
        Matrix<E> normed;
        float* factors;
    };
    Norm final_norm() const {
        return {task.weights[NORM], task.weights[NORM_BIAS], gradient(NORM), gradient(NORM_BIAS),
                memory.final_normed, memory.final_factor};
    }
    Norm attention_norm(long l) const {
        const KeptLayer<E>& kept = memory.layers[l];
        return {weight(l, ATTENTION_NORM), weight(l, ATTENTION_NORM_BIAS), gradient(l, ATTENTION_NORM),
                gradient(l, ATTENTION_NORM_BIAS), kept.attention_normed, kept.attention_factor};
    }
    Norm feed_norm(long l) const {
        const KeptLayer<E>& kept = memory.layers[l];
        return {weight(l, FEED_NORM), weight(l, FEED_NORM_BIAS), gradient(l, FEED_NORM),
                gradient(l, FEED_NORM_BIAS), kept.feed_normed, kept.feed_factor};
    }

    // Normalises the stream, keeps that, and applies the norm's weights into memory.normed.
    void normalise_rows(const Norm& norm) {
        for (long r = 0; r < num_rows; r++)
            norm.factors[r] = is_qwen ? normalise<false>(memory.stream.row(r), width, norm.normed.row(r))
                                      : normalise<true>(memory.stream.row(r), width, norm.normed.row(r));
        apply_weights(norm);
    }
    void apply_weights(const Norm& norm) {
        scale_rows(norm.normed, num_rows, width, norm.weight, norm.bias, memory.normed);
    }

    // Adds to the stream's gradient what memory.normed_grad is worth for it.
    void norm_backward(const Norm& norm) {
        const auto add = is_qwen ? add_norm_gradient<false, E> : add_norm_gradient<true, E>;
        for (long r = 0; r < num_rows; r++)
            add(memory.normed_grad.row(r), norm.normed.row(r), norm.factors[r], width, norm.weight, norm.weight_grad,
                norm.bias_grad, memory.stream_grad.row(r));
    }

    // Products with a weight of out x in numbers: forward, for the gradient of the input, and for its own gradient.
    template <class Finish> void linear(const float* weight, long in, long out, Matrix<E> x, const Finish& finish) {
        product<E, false, true>(num_rows, out, in, x, Matrix<const float>{weight, in}, memory.workspace, finish);
    }
    template <class Finish>
    void input_grad(const float* weight, long in, long out, Matrix<E> grad, const Finish& finish) {
        product<E, false, false>(num_rows, in, out, grad, Matrix<const float>{weight, in}, memory.workspace, finish);
    }
    void weight_grad(long layer, LayerTensor which, LayerTensor bias, long in, long out, Matrix<E> x, Matrix<E> grad) {
        add_weight_gradient(task, in, out, num_rows, x, grad, gradient(layer, which), memory.workspace);
        if (gradient(layer, bias)) add_column_sums(grad, num_rows, out, gradient(layer, bias));
    }

    void forward_layer(long l) {
        KeptLayer<E>& kept = memory.layers[l];
        normalise_rows(attention_norm(l));
        linear(weight(l, QKV), width, 3 * width, memory.normed, store_rows(kept.qkv, weight(l, QKV_BIAS)));
        for_heads(l, [&](const Attention<E>& attention, long first, long column) {
            attention.forward({kept.attended.row(first) + column, kept.attended.stride},
                              kept.log_sums + first * shape.num_heads + column / head, shape.num_heads);
        });
        linear(weight(l, ATTENTION_OUT), width, width, kept.attended,
               add_rows(memory.stream, weight(l, ATTENTION_OUT_BIAS)));
        normalise_rows(feed_norm(l));
        if (is_qwen) {
            linear(weight(l, UP), width, up_width, memory.normed, store_rows(kept.up));
            for (long r = 0; r < num_rows; r++) {
                const E *gate = kept.up.row(r), *up = gate + feed_forward;
                E* to = memory.gated.row(r);
#pragma GCC ivdep
                for (long j = 0; j < feed_forward; j++)
                    store(to[j], load(gate[j]) * sigmoid(load(gate[j])) * load(up[j]));
            }
        } else {
            const float* bias = weight(l, UP_BIAS);
            const auto finish = [&](long row, long column, long count, const float* strip) {
                E *up = kept.up.row(row) + column, *to = memory.gated.row(row) + column;
                for (long j = 0; j < count; j++) {
                    const float x = strip[j] + (bias ? bias[column + j] : 0);
                    store(up[j], x);
                    store(to[j], gelu(x));
                }
            };
            linear(weight(l, UP), width, up_width, memory.normed, finish);
        }
        linear(weight(l, DOWN), feed_forward, width, memory.gated, add_rows(memory.stream, weight(l, DOWN_BIAS)));
    }

    void backward_layer(long l) {
        KeptLayer<E>& kept = memory.layers[l];
        round_rows(memory.stream_grad, num_rows, width, memory.rounded_grad);
        gate_backward(l);
        weight_grad(l, DOWN, DOWN_BIAS, feed_forward, width, memory.gated, memory.rounded_grad);
        apply_weights(feed_norm(l));
        weight_grad(l, UP, UP_BIAS, width, up_width, memory.normed, memory.up_grad);
        input_grad(weight(l, UP), width, up_width, memory.up_grad, store_rows(memory.normed_grad));
        norm_backward(feed_norm(l));

        round_rows(memory.stream_grad, num_rows, width, memory.rounded_grad);
        weight_grad(l, ATTENTION_OUT, ATTENTION_OUT_BIAS, width, width, kept.attended, memory.rounded_grad);
        input_grad(weight(l, ATTENTION_OUT), width, width, memory.rounded_grad, store_rows(memory.attended_grad));
        attention_backward(l);
        apply_weights(attention_norm(l));
        weight_grad(l, QKV, QKV_BIAS, width, 3 * width, memory.normed, memory.qkv_grad);
        input_grad(weight(l, QKV), width, 3 * width, memory.qkv_grad, store_rows(memory.normed_grad));
        norm_backward(attention_norm(l));
    }

    // Computes memory.up_grad from the gradient of the layer's output, and memory.gated once more.
    void gate_backward(long l) {
        KeptLayer<E>& kept = memory.layers[l];
        const long other = feed_forward;  // from a gate to the number that it gates
        input_grad(weight(l, DOWN), feed_forward, width, memory.rounded_grad,
                   [&](long row, long column, long count, const float* strip) {
            const E* up = kept.up.row(row) + column;
            E *to = memory.up_grad.row(row) + column, *gated = memory.gated.row(row) + column;
            if (is_qwen) {
#pragma GCC ivdep
                for (long j = 0; j < count; j++) {
                    const float gate = load(up[j]), open = sigmoid(gate), silu = gate * open;
                    store(gated[j], silu * load(up[other + j]));
                    store(to[j], strip[j] * load(up[other + j]) * (open + silu * (1 - open)));
                    store(to[other + j], strip[j] * silu);
                }
            } else {
#pragma GCC ivdep
                for (long j = 0; j < count; j++) {
                    float slope;
                    store(gated[j], gelu_with_slope(load(up[j]), slope));
                    store(to[j], strip[j] * slope);
                }
            }
        });
    }

    void attention_backward(long l) {
        KeptLayer<E>& kept = memory.layers[l];
        for_heads(l, [&](const Attention<E>& attention, long first, long column) {
            const Matrix<float> grads[] = {memory.query_grad, memory.key_grad, memory.value_grad};
            for (Matrix<float> grad : grads) memset(grad.data, 0, sizeof(float) * grad.stride * shape.length);
            attention.backward({kept.attended.row(first) + column, kept.attended.stride},
                               {memory.attended_grad.row(first) + column, memory.attended_grad.stride},
                               kept.log_sums + first * shape.num_heads + column / head, shape.num_heads,
                               memory.query_grad, memory.key_grad, memory.value_grad);
            for (long part = 0; part < 3; part++)
                for (long t = 0; t < shape.length; t++) {
                    const long at = part * width + column;
                    float* grad = grads[part].row(t);
                    if (is_qwen && part < 2) prepare_backward(l, part, first + t, kept.qkv.row(first + t) + at, grad);
                    E* to = memory.qkv_grad.row(first + t) + at;
#pragma GCC ivdep
                    for (long j = 0; j < head; j++) store(to[j], grad[j]);
                }
        });
    }

    // Calls use(attention, first row of the sequence, first column of the head) for all sequences and heads.
    template <class Use> void for_heads(long l, const Use& use) {
        const Matrix<E> qkv = memory.layers[l].qkv;
        for (long s = 0; s < rows.num_sequences; s++)
            for (long h = 0; h < shape.num_heads; h++) {
                const long first = s * shape.length, column = h * head;
                E* at = qkv.row(first) + column;
                Attention<E> attention{
                    shape.length, head, memory.document_start + first,
                    {at, qkv.stride}, {at + width, qkv.stride}, {at + 2 * width, qkv.stride},
                    memory.scores, memory.probabilities, memory.score_grads, &memory.workspace};
                if (is_qwen) {
                    prepare(l, 0, first, attention.query, memory.query);
                    prepare(l, 1, first, attention.key, memory.key);
                    attention.query = memory.query, attention.key = memory.key;
                }
                use(attention, first, column);
            }
    }

    const float* angles(long row) const { return task.rotary + memory.position[row] * head; }

    // Normalises and rotates the queries (part 0) or keys (part 1) of one head and sequence.
    void prepare(long l, long part, long first, Matrix<E> from, Matrix<E> to) {
        const float* scale = weight(l, part ? KEY_NORM : QUERY_NORM);
        float* x = memory.head_row;
        for (long t = 0; t < shape.length; t++) {
            for (long j = 0; j < head; j++) x[j] = load(from.row(t)[j]);
            normalise<false>(x, head, x);
            for (long j = 0; j < head; j++) x[j] *= scale[j];
            rotate<1>(x, head / 2, angles(first + t));
            for (long j = 0; j < head; j++) store(to.row(t)[j], x[j]);
        }
    }

    // Turns the gradient of a prepared query or key into that of what came out of the product.
    void prepare_backward(long l, long part, long row, const E* raw, float* grad) {
        float *normed = memory.head_row, *total = memory.head_row_grad;
        rotate<-1>(grad, head / 2, angles(row));
        for (long j = 0; j < head; j++) normed[j] = load(raw[j]), total[j] = 0;
        const float factor = normalise<false>(normed, head, normed);
        add_norm_gradient<false>(grad, normed, factor, head, weight(l, part ? KEY_NORM : QUERY_NORM),
                                 gradient(l, part ? KEY_NORM : QUERY_NORM), nullptr, total);
        memcpy(grad, total, sizeof(float) * head);
    }
};

}  // namespace ISA
