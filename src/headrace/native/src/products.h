// Matrix products C = A B, tile by tile, for one thread.
//
// B is packed panel by panel, and rows of A are taken as the tiles want them (tiles.h). Finished rows go to a strip in
// the first-level cache, from which a functor of the caller takes them: it adds a bias, applies a gate, rounds, or adds
// to a gradient.
#pragma once
#include "tiles.h"

namespace ISA {

// Packs columns [first, first + width) of B, which has num_k rows.
template <class E, bool TRANSPOSED, class S>
void pack_panels(Matrix<S> b, long num_k, long first, long width, uint32_t* to) {
    const long num_words = Tiles<E>::packed_words(num_k), filled = words<E>(num_k);
    for (long j = 0; j < width; j += PANEL, to += num_words * PANEL) {
        const long columns = width - j < PANEL ? width - j : PANEL;
        if (filled < num_words) memset(to + filled * PANEL, 0, 4 * PANEL * (num_words - filled));
        if (TRANSPOSED)
            transpose_rows<E>(b.row(first + j), b.stride, num_k, columns, to);
        else
            zip_rows<E, PANEL>(b.data + first + j, b.stride, num_k, columns, to);
    }
}

// Where a product packs its operands; one for each thread.
struct Workspace {
    uint32_t* panels;  // PACKED_WORDS + PANEL * (most words of k)
    uint32_t* rows;    // as many words as tiles need for rows of A
    float* strip;      // STRIP_STRIDE for each row of a tile
};
// 2 MiB: all panels of a usual weight. They are read in order, which the third-level cache is fast enough for, and a
// transposed A has to be packed only once; with half a MiB, in the second-level cache, gradients took 15% longer.
constexpr long PACKED_WORDS = 512 << 10;
constexpr long STRIP_COLUMNS = 512, STRIP_STRIDE = STRIP_COLUMNS + 16;  // not a power of two: rows share no cache line

INLINE long columns_at_once(long num_words, long num_columns) {
    long panels = PACKED_WORDS / (num_words * PANEL);
    panels = panels < 1 ? 1 : panels > STRIP_COLUMNS / PANEL ? STRIP_COLUMNS / PANEL : panels;
    const long needed = (num_columns + PANEL - 1) / PANEL, times = (needed + panels - 1) / panels;
    return (needed + times - 1) / times * PANEL;
}

// Computes C = A B by tiles. A has num_rows rows in words of E; if A_TRANSPOSED, it lies as num_k rows and is packed.
// B lies as num_k rows, or if B_TRANSPOSED as num_columns rows. finish(row, column, count, strip) gets the results of
// each row.
template <class E, bool A_TRANSPOSED, bool B_TRANSPOSED, class SA, class SB, class Finish>
void product(
    long num_rows, long num_columns, long num_k, Matrix<SA> a, Matrix<SB> b, Workspace& workspace, const Finish& finish
) {
    if (!num_rows || !num_columns || !num_k) return;
    const long num_words = Tiles<E>::packed_words(num_k), at_once = columns_at_once(num_words, num_columns);
    const long num_blocks = (num_rows + Tiles<E>::ROWS - 1) / Tiles<E>::ROWS;
    for (long first = 0; first < num_columns; first += at_once) {
        const long width = num_columns - first < at_once ? num_columns - first : at_once;
        pack_panels<E, B_TRANSPOSED>(b, num_k, first, width, workspace.panels);
        for (long block = 0; block < num_blocks; block++) {
            // Blocks of almost equal height: one of a few rows would waste most of a tile.
            const long row = block * num_rows / num_blocks, height = (block + 1) * num_rows / num_blocks - row;
            const typename Tiles<E>::template Left<A_TRANSPOSED, SA> left(
                a, num_rows, num_k, row, height, workspace.rows
            );
            if constexpr (requires { finish.prefetch(row, first, width); })
                for (long i = 0; i < height; i++) finish.prefetch(row + i, first, width);
            for (long j = 0; j < width; j += PANEL)
                left.compute(workspace.panels + j * num_words, num_words, workspace.strip + j, STRIP_STRIDE);
            for (long i = 0; i < height; i++) finish(row + i, first, width, workspace.strip + i * STRIP_STRIDE);
        }
    }
}

// What callers most often do with finished rows: keep them or add them to a matrix, with a bias or without.
template <class S> auto store_rows(Matrix<S> to, const float* bias = nullptr) {
    return [=](long row, long column, long count, const float* strip) {
        S* out = to.row(row) + column;
        if (bias)
#pragma GCC ivdep
            for (long j = 0; j < count; j++) store(out[j], strip[j] + bias[column + j]);
        else
#pragma GCC ivdep
            for (long j = 0; j < count; j++) store(out[j], strip[j]);
    };
}
struct AddRows {
    Matrix<float> to;
    const float* bias;
    // Gradients come from main memory: asked for before the tiles are computed, they are there when they are needed.
    void prefetch(long row, long column, long count) const {
        const float* out = to.row(row) + column;
        for (long j = 0; j < count; j += 64 / sizeof(float)) __builtin_prefetch(out + j, 1, 2);
    }
    void operator()(long row, long column, long count, const float* strip) const {
        float* out = to.row(row) + column;
        if (bias)
#pragma GCC ivdep
            for (long j = 0; j < count; j++) out[j] += strip[j] + bias[column + j];
        else
#pragma GCC ivdep
            for (long j = 0; j < count; j++) out[j] += strip[j];
    }
};
INLINE AddRows add_rows(Matrix<float> to, const float* bias = nullptr) { return {to, bias}; }

}  // namespace ISA
