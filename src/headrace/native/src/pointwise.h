// What is computed number by number between the products: norms, gates, rotary positions. The compiler vectorises it.
#pragma once
#include <math.h>

#include "products.h"

namespace ISA {

constexpr float LAYER_NORM_EPSILON = 1e-5f, RMS_NORM_EPSILON = 1e-6f;

// Normalises a row to mean 0 (if CENTERED) and mean square 1; returns the factor. `normed` may be what is kept of it.
template <bool CENTERED, class E> INLINE float normalise(const float* x, long n, E* normed) {
    float sum = 0, squares = 0;
    if (CENTERED)
        for (long j = 0; j < n; j++) sum += x[j];
    const float mean = sum / n;
    for (long j = 0; j < n; j++) squares += (x[j] - mean) * (x[j] - mean);
    const float factor = 1 / sqrtf(squares / n + (CENTERED ? LAYER_NORM_EPSILON : RMS_NORM_EPSILON));
    for (long j = 0; j < n; j++) store(normed[j], (x[j] - mean) * factor);
    return factor;
}

// Applies the weights of a norm to normalised rows.
template <class E>
void scale_rows(Matrix<E> normed, long rows, long n, const float* weight, const float* bias, Matrix<E> to) {
    for (long r = 0; r < rows; r++) {
        const E* from = normed.row(r);
        E* out = to.row(r);
        if (bias)
#pragma GCC ivdep
            for (long j = 0; j < n; j++) store(out[j], load(from[j]) * weight[j] + bias[j]);
        else
#pragma GCC ivdep
            for (long j = 0; j < n; j++) store(out[j], load(from[j]) * weight[j]);
    }
}

// Adds to `total` what the gradient of a normalised row is worth for the row itself; `grad` is by the norm's output.
template <bool CENTERED, class E>
void add_norm_gradient(
    const float* grad, const E* normed, float factor, long n, const float* weight, float* weight_grad, float* bias_grad,
    float* total
) {
    float sum = 0, along = 0;
    for (long j = 0; j < n; j++) {
        const float weighted = grad[j] * weight[j];
        sum += weighted;
        along += weighted * load(normed[j]);
    }
    const float mean = CENTERED ? sum / n : 0.0f;
    along /= n;
#pragma GCC ivdep
    for (long j = 0; j < n; j++) {
        total[j] += factor * (grad[j] * weight[j] - mean - load(normed[j]) * along);
        weight_grad[j] += grad[j] * load(normed[j]);
    }
    if (bias_grad)
#pragma GCC ivdep
        for (long j = 0; j < n; j++) bias_grad[j] += grad[j];
}

template <class S> void add_column_sums(Matrix<S> rows, long num_rows, long n, float* total) {
    for (long r = 0; r < num_rows; r++)
#pragma GCC ivdep
        for (long j = 0; j < n; j++) total[j] += load(rows.row(r)[j]);
}

template <class E> void round_rows(Matrix<float> from, long num_rows, long n, Matrix<E> to) {
    for (long r = 0; r < num_rows; r++)
#pragma GCC ivdep
        for (long j = 0; j < n; j++) store(to.row(r)[j], from.row(r)[j]);
}

// GELU by tanh is x * sigmoid(u) with u = x * (LINEAR + CUBIC * x * x).
constexpr float LINEAR = 1.5957691216057308f, CUBIC = 0.071354816272600420f;
INLINE float gelu(float x) { return x * sigmoid(x * (LINEAR + CUBIC * x * x)); }
INLINE float gelu_with_slope(float x, float& slope) {
    const float gate = sigmoid(x * (LINEAR + CUBIC * x * x));
    slope = gate + gate * (1 - gate) * x * (LINEAR + 3 * CUBIC * x * x);
    return x * gate;
}

// Rotates the pairs (j, j + half) of a head by the angles of its position; DIRECTION is 1, or -1 for the way back.
template <int DIRECTION> INLINE void rotate(float* x, long half, const float* cosines_and_sines) {
    const float *cosine = cosines_and_sines, *sine = cosines_and_sines + half;
#pragma GCC ivdep
    for (long j = 0; j < half; j++) {
        const float first = x[j], second = x[j + half];
        x[j] = first * cosine[j] - DIRECTION * second * sine[j];
        x[j + half] = second * cosine[j] + DIRECTION * first * sine[j];
    }
}

}  // namespace ISA
