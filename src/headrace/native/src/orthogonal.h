// Nearly the closest orthogonal matrix, by Newton-Schulz iterations (docs/design/muon.md): products and little else.
//
// One thread computes a matrix from beginning to end, in its own caches. With G = X X^T (X^T X where X is tall), each
// iteration is X <- a X + (b G + c G^2) X, with coefficients of its own. G and G^2 are symmetric: blocks below the
// diagonal are copied from those above it.
#pragma once
#include "memory.h"
#include "pointwise.h"

namespace ISA {

class Orthogonaliser {
public:
    // Without memory it only counts the bytes that it needs.
    Orthogonaliser(long rows, long columns, void* base)
        : rows(rows), columns(columns), is_tall(rows > columns), side(is_tall ? columns : rows) {
        Arena arena{(char*)base};
        x = arena.matrix<bfloat16>(rows, columns);
        next = arena.matrix<bfloat16>(rows, columns);
        gram = arena.matrix<bfloat16>(side, side);
        polynomial = arena.matrix<bfloat16>(side, side);
        exact_gram = arena.matrix<float>(side, side);
        square = arena.matrix<float>(side, side);
        workspace = arena.workspace<bfloat16>(rows > columns ? rows : columns);
        bytes = arena.used;
    }

    long bytes;

    // Replaces a matrix of rows x columns numbers, which lie one after the other.
    void run(bfloat16* given, const float* polynomials, long num_polynomials) {
        const Matrix<bfloat16> matrix{given, columns};
        scale_by_norm(matrix);
        for (long i = 0; i < num_polynomials; i++) {
            const float a = polynomials[3 * i], b = polynomials[3 * i + 1], c = polynomials[3 * i + 2];
            compute_gram();
            compute_square();
            // The matrix itself is never scaled again: its factor goes into the coefficients of the first iteration.
            const float scale = i ? 1.0f : 1 / largest_singular_value();
            compute_polynomial(b * scale * scale, c * scale * scale * scale * scale);
            multiply(a * scale, scale, i + 1 < num_polynomials ? next : matrix);
            const Matrix<bfloat16> old = x;
            x = next, next = old;
        }
    }

private:
    static constexpr long BLOCK = 56 / TILE_ROWS * TILE_ROWS;  // most rows of a block of a symmetric matrix
    static constexpr float NORM_MARGIN = 1.02f;  // for what rounding takes off the estimate of the largest value

    // Copies the matrix, at a norm of 1.
    void scale_by_norm(Matrix<bfloat16> given) {
        float squares = 0;
        for (long i = 0; i < rows * columns; i++) squares += load(given.data[i]) * load(given.data[i]);
        const float factor = 1 / (sqrtf(squares) + 1e-7f);
        for (long i = 0; i < rows; i++) {
            const bfloat16* from = given.row(i);
            bfloat16* to = x.row(i);
#pragma GCC ivdep
            for (long j = 0; j < columns; j++) store(to[j], factor * load(from[j]));
            end_row(to, columns);
        }
    }

    // A product reads numbers of a row in pairs: beyond an odd number of them lies a zero.
    static void end_row(bfloat16* row, long width) {
        if (width % 2) row[width].bits = 0;
    }

    void compute_gram() {
        for_blocks(exact_gram, [this](long first, long height, Matrix<float> to) {
            if (is_tall) {
                const Matrix<bfloat16> from{x.data + first, x.stride};
                product<bfloat16, true, false>(height, side - first, rows, from, from, workspace, store_rows(to));
            } else {
                const Matrix<bfloat16> from = x.from(first);
                product<bfloat16, false, true>(height, side - first, columns, from, from, workspace, store_rows(to));
            }
        });
        for (long i = 0; i < side; i++) {
            const float* from = exact_gram.row(i);
            bfloat16* to = gram.row(i);
#pragma GCC ivdep
            for (long j = 0; j < side; j++) store(to[j], from[j]);
            end_row(to, side);
        }
    }

    void compute_square() {
        for_blocks(square, [this](long first, long height, Matrix<float> to) {
            const Matrix<bfloat16> from{gram.data + first, gram.stride};
            product<bfloat16, false, false>(
                height, side - first, side, gram.from(first), from, workspace, store_rows(to)
            );
        });
    }

    // Calls compute(first, height, to) for blocks of the rows of a symmetric matrix, to compute their columns from
    // `first` on, and fills in the rest.
    template <class Compute> void for_blocks(Matrix<float> symmetric, const Compute& compute) {
        const long num_blocks = (side + BLOCK - 1) / BLOCK;
        for (long block = 0; block < num_blocks; block++) {
            const long first = block * side / num_blocks, end = (block + 1) * side / num_blocks;
            compute(first, end - first, Matrix<float>{symmetric.row(first) + first, symmetric.stride});
            for (long i = end; i < side; i += LANES)
                for (long j = first; j < end; j += LANES) mirror(symmetric, i, j, end);
        }
    }

    // Copies numbers from above the diagonal to up to LANES rows from i on, and as many columns from j on before `end`.
    void mirror(Matrix<float> symmetric, long i, long j, long end) {
        if (i + LANES <= side && j + LANES <= end) {
            WordVector block[LANES];
            for (int k = 0; k < LANES; k++) memcpy(&block[k], symmetric.row(j + k) + i, sizeof block[k]);
            transpose(block);
            for (int k = 0; k < LANES; k++) memcpy(symmetric.row(i + k) + j, &block[k], sizeof block[k]);
        } else {
            for (long row = i; row < side && row < i + LANES; row++)
                for (long column = j; column < end && column < j + LANES; column++)
                    symmetric.row(row)[column] = symmetric.row(column)[row];
        }
    }

    // An estimate from above: the eighth root of the sum of eighth powers, and the norm of G^2 is its fourth power.
    float largest_singular_value() const {
        float squares = 0;
        for (long i = 0; i < side; i++)
            for (long j = 0; j < side; j++) squares += square.row(i)[j] * square.row(i)[j];
        const float estimate = NORM_MARGIN * sqrtf(sqrtf(sqrtf(squares))), least = 1 / sqrtf(float(side));
        return estimate > least ? estimate : least;  // a matrix of norm 1 has no less: binds where it is next to zero
    }

    void compute_polynomial(float b, float c) {
        for (long i = 0; i < side; i++) {
            const float *linear = exact_gram.row(i), *quadratic = square.row(i);
            bfloat16* to = polynomial.row(i);
#pragma GCC ivdep
            for (long j = 0; j < side; j++) store(to[j], b * linear[j] + c * quadratic[j]);
            end_row(to, side);
        }
    }

    // Stores a X + factor (polynomial X).
    void multiply(float a, float factor, Matrix<bfloat16> result) {
        const auto finish = [=, this](long row, long column, long count, const float* strip) {
            const bfloat16* from = x.row(row) + column;
            bfloat16* to = result.row(row) + column;
#pragma GCC ivdep
            for (long j = 0; j < count; j++) store(to[j], a * load(from[j]) + factor * strip[j]);
            if (result.stride > columns && column + count == columns) end_row(result.row(row), columns);
        };
        if (is_tall)
            product<bfloat16, false, false>(rows, columns, side, x, polynomial, workspace, finish);
        else
            product<bfloat16, false, false>(rows, columns, side, polynomial, x, workspace, finish);
    }

    const long rows, columns;
    const bool is_tall;
    const long side;  // the shorter one
    Matrix<bfloat16> x, next, gram, polynomial;
    Matrix<float> exact_gram, square;
    Workspace workspace;
};

}  // namespace ISA
