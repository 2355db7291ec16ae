// Nearly the closest orthogonal matrix, by Newton-Schulz iterations (docs/design/muon.md): products and little else.
//
// One thread computes a matrix from beginning to end, in its own caches. With G = X X^T (X^T X where X is tall), each
// iteration is X <- p(G) X, where p(G) = a I + b G + c G^2 has coefficients of its own. Where the iterations run on G
// alone, G <- p(G) G p(G), X is multiplied once, by the product of all p(G): in numbers that are rounded for products,
// small singular values would be lost. All these matrices but X are symmetric, and they commute: blocks below the
// diagonal are copied from those above it.
#pragma once
#include "memory.h"
#include "pointwise.h"

namespace ISA {

template <class E> class Orthogonaliser {
public:
    // Without memory it only counts the bytes that it needs.
    Orthogonaliser(const Matrices& given, void* base)
        : given(given), rows(given.rows), columns(given.columns), is_tall(rows > columns),
          side(is_tall ? columns : rows) {
        Arena arena{(char*)base};
        x = arena.matrix<E>(rows, columns);
        polynomial = arena.matrix<E>(side, side);
        gram = arena.matrix<float>(side, side);
        square = arena.matrix<float>(side, side);
        if (given.is_by_gram) {
            total = arena.matrix<E>(side, side);
            spare = arena.matrix<float>(side, side);
        } else {
            next = arena.matrix<E>(rows, columns);
        }
        if constexpr (ROUNDS) rounded_gram = arena.matrix<E>(side, side);
        workspace = arena.workspace<E>(rows > columns ? rows : columns);
        bytes = arena.used;
    }

    long bytes;

    // Replaces one of the matrices.
    void run(long number) {
        const Matrix<E> matrix{(E*)given.data + number * rows * columns, columns};
        scale_by_norm(matrix);
        compute_gram();
        square_gram();
        // The matrix itself is never scaled again: the factor goes into the products of the first iteration.
        const float scale = 1 / largest_singular_value();
        multiply_all(gram, scale * scale);
        multiply_all(square, scale * scale * scale * scale);
        if constexpr (!ROUNDS)
            if (given.is_by_gram) return iterate_on_gram(scale, matrix);
        for (long i = 0; i < given.num_polynomials; i++) {
            if (i) compute_gram(), square_gram();
            const float* of = given.polynomials + 3 * i;
            compute_polynomial(0, of[1], of[2]);
            multiply(i ? of[0] : of[0] * scale, i ? 1 : scale, polynomial, i + 1 < given.num_polynomials ? next : matrix);
            swap(x, next);
        }
    }

private:
    static constexpr bool ROUNDS = PER_WORD<E> > 1;  // whether products take numbers that are rounded first
    static constexpr long BLOCK = 64 / Tiles<E>::ROWS * Tiles<E>::ROWS;  // most rows of a block of a symmetric matrix
    static constexpr float NORM_MARGIN = 1.02f;  // for what rounding takes off the estimate of the largest value

    template <class T> static void swap(T& one, T& other) {
        const T kept = one;
        one = other, other = kept;
    }

    // The first Gram matrix and its square are there. Writes the result, of the matrix times `scale`.
    void iterate_on_gram(float scale, Matrix<E> result) {
        for (long i = 0; i < given.num_polynomials; i++) {
            if (i) {
                multiply_symmetric(polynomial, gram, square);
                multiply_symmetric(square, polynomial, spare);
                swap(gram, spare);
                square_gram();
            }
            const float* of = given.polynomials + 3 * i;
            compute_polynomial(of[0], of[1], of[2]);
            if (i) {
                multiply_symmetric(total, polynomial, spare);
                swap(total, spare);
            } else {
                memcpy(total.data, polynomial.data, sizeof(float) * side * total.stride);
            }
        }
        multiply(0, scale, total, result);
    }

    // Copies the matrix, at a norm of 1.
    void scale_by_norm(Matrix<E> matrix) {
        float squares = 0;
        for (long i = 0; i < rows * columns; i++) squares += load(matrix.data[i]) * load(matrix.data[i]);
        const float factor = 1 / (sqrtf(squares) + 1e-7f);
        for (long i = 0; i < rows; i++) {
            const E* from = matrix.row(i);
            E* to = x.row(i);
#pragma GCC ivdep
            for (long j = 0; j < columns; j++) store(to[j], factor * load(from[j]));
            end_row(to, columns);
        }
    }

    // A product reads numbers of a row word by word: beyond an odd number of halves of words lies a zero.
    static void end_row(E* row, long width) {
        if (width % PER_WORD<E>) store(row[width], 0);
    }

    void multiply_all(Matrix<float> matrix, float factor) const {
        for (long i = 0; i < side; i++)
            for (long j = 0; j < side; j++) matrix.row(i)[j] *= factor;
    }

    void compute_gram() {
        for_blocks(gram, [this](long first, long height, Matrix<float> to) {
            if (is_tall) {
                const Matrix<E> from{x.data + first, x.stride};
                product<E, true, false>(height, side - first, rows, from, from, workspace, store_rows(to));
            } else {
                const Matrix<E> from = x.from(first);
                product<E, false, true>(height, side - first, columns, from, from, workspace, store_rows(to));
            }
        });
    }

    void square_gram() {
        if constexpr (ROUNDS) {
            for (long i = 0; i < side; i++) {
                const float* from = gram.row(i);
                E* to = rounded_gram.row(i);
#pragma GCC ivdep
                for (long j = 0; j < side; j++) store(to[j], from[j]);
                end_row(to, side);
            }
            multiply_symmetric(rounded_gram, rounded_gram, square);
        } else {
            multiply_symmetric(gram, gram, square);
        }
    }

    // Of matrices whose product is symmetric as well.
    void multiply_symmetric(Matrix<E> left, Matrix<E> right, Matrix<float> result) {
        for_blocks(result, [=, this](long first, long height, Matrix<float> to) {
            const Matrix<E> from{right.data + first, right.stride};
            product<E, false, false>(height, side - first, side, left.from(first), from, workspace, store_rows(to));
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

    void compute_polynomial(float a, float b, float c) {
        for (long i = 0; i < side; i++) {
            const float *linear = gram.row(i), *quadratic = square.row(i);
            E* to = polynomial.row(i);
#pragma GCC ivdep
            for (long j = 0; j < side; j++) store(to[j], b * linear[j] + c * quadratic[j]);
            if constexpr (!ROUNDS) to[i] += a;
            end_row(to, side);
        }
    }

    // Stores a X + factor (square X).
    void multiply(float a, float factor, Matrix<E> square, Matrix<E> result) {
        const auto finish = [=, this](long row, long column, long count, const float* strip) {
            const E* from = x.row(row) + column;
            E* to = result.row(row) + column;
#pragma GCC ivdep
            for (long j = 0; j < count; j++) store(to[j], a * load(from[j]) + factor * strip[j]);
            if (result.stride > columns && column + count == columns) end_row(result.row(row), columns);
        };
        if (is_tall)
            product<E, false, false>(rows, columns, side, x, square, workspace, finish);
        else
            product<E, false, false>(rows, columns, side, square, x, workspace, finish);
    }

    const Matrices& given;
    const long rows, columns;
    const bool is_tall;
    const long side;  // the shorter one
    Matrix<E> x, next, polynomial, total, rounded_gram;
    Matrix<float> gram, square, spare;
    Workspace workspace;
};

}  // namespace ISA
