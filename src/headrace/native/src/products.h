// Matrix products C = A B, tile by tile, for one thread.
//
// Operands are made of 32-bit words along the inner dimension K: one float32, or two bfloat16 (k and k + 1). A tile
// is TILE_ROWS rows of A times a panel of PANEL columns of B. B is packed panel by panel (for each word of k, PANEL
// words); rows of A are read where they are, or packed where A is transposed. Finished rows go to a strip in the
// first-level cache, from which a functor of the caller takes them: it adds a bias, applies a gate, rounds, or adds to
// a gradient.
#pragma once
#include "vectors.h"

namespace ISA {

template <class E> constexpr long PER_WORD = 4 / sizeof(E);  // numbers of k in a word
template <class E> constexpr long words(long k) { return (k + PER_WORD<E> - 1) / PER_WORD<E>; }

INLINE void multiply_add(Vector& sum, uint32_t word, WordVector panel, float) { sum += float_of(word) * (Vector)panel; }
INLINE void multiply_add(Vector& sum, uint32_t word, WordVector panel, bfloat16) {
#ifdef __AVX512BF16__
    sum = (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(word), (__m512bh)panel);
#else
    sum += float_of(word << 16) * (Vector)(panel << 16);
    sum += float_of(word & 0xffff0000) * (Vector)(panel & 0xffff0000);
#endif
}

// Computes ROWS x PANEL numbers. a: first word of the first row; strides in bytes between rows and words of k.
template <class E, int ROWS>
__attribute__((noinline)) void compute_tile(
    const char* a, long row_stride, long word_stride, const uint32_t* panel, long num_words, float* to, long to_stride
) {
    Vector sums[ROWS][2] = {};
    // Every third row has a pointer: the processor adds the stride once or twice by itself.
    const char* thirds[(ROWS + 2) / 3];
#pragma GCC unroll 8
    for (int i = 0; i < (ROWS + 2) / 3; i++) thirds[i] = a + 3 * i * row_stride;
    for (long k = 0; k < num_words; k++, panel += PANEL) {
        WordVector left, right;
        memcpy(&left, panel, sizeof left);
        memcpy(&right, panel + LANES, sizeof right);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; i++) {
            uint32_t word;
            memcpy(&word, thirds[i / 3] + (i % 3) * row_stride, 4);
            multiply_add(sums[i][0], word, left, E());
            multiply_add(sums[i][1], word, right, E());
        }
#pragma GCC unroll 8
        for (int i = 0; i < (ROWS + 2) / 3; i++) thirds[i] += word_stride;
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
        *(LooseVector*)(to + i * to_stride) = sums[i][0];
        *(LooseVector*)(to + i * to_stride + LANES) = sums[i][1];
    }
}

template <int... I> struct Sequence {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> {
    using Indices = Sequence<I...>;  // 0, 1, ..., N - 1
};

using Tile = void (*)(const char*, long, long, const uint32_t*, long, float*, long);
template <class E, int... I> Tile tile_of(long rows, Sequence<I...>) {
    static constexpr Tile by_rows[] = {compute_tile<E, I + 1>...};
    return by_rows[rows - 1];
}

// One operand as it lies in memory: number (i, j) is at data[i * stride + j], or transposed at data[j * stride + i].
template <class S> struct Matrix {
    S* data;
    long stride;
    S* row(long i) const { return data + i * stride; }
    Matrix from(long i) const { return {row(i), stride}; }  // the rows from this one on
};

template <class S> struct Plain {
    using Type = S;
};
template <class S> struct Plain<const S> {
    using Type = S;
};

template <class E> struct ZipWord;
template <> struct ZipWord<float> {
    template <class S> static INLINE uint32_t of(const S* first, const S*, long j) { return bits_of(load(first[j])); }
};
template <> struct ZipWord<bfloat16> {
    static INLINE uint32_t of(const float* first, const float* second, long j) {
        return rounded(bits_of(first[j])) >> 16 | (rounded(bits_of(second[j])) & 0xffff0000);
    }
    static INLINE uint32_t of(const bfloat16* first, const bfloat16* second, long j) {
        return uint32_t(first[j].bits) | uint32_t(second[j].bits) << 16;
    }
};

// Packs `width` numbers of each of num_k rows as words: row k of the source is row k of the inner dimension.
template <class E, long WIDTH, class S>
void zip_rows(const S* source, long stride, long num_k, long width, uint32_t* to) {
    static const typename Plain<S>::Type zeros[WIDTH] = {};
    for (long k = 0; k < num_k; k += PER_WORD<E>, to += WIDTH) {
        const S* first = source + k * stride;
        const S* second = k + 1 < num_k || PER_WORD<E> == 1 ? first + stride : zeros;
        if (width == WIDTH) {
#pragma GCC ivdep
            for (long j = 0; j < WIDTH; j++) to[j] = ZipWord<E>::of(first, second, j);
        } else {
            for (long j = 0; j < width; j++) to[j] = ZipWord<E>::of(first, second, j);
            for (long j = width; j < WIDTH; j++) to[j] = 0;
        }
    }
}

template <int S, int... J> INLINE void swap_blocks(WordVector* rows, Sequence<J...>) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i & S) continue;
        WordVector a = rows[i], b = rows[i + S];
        rows[i] = __builtin_shufflevector(a, b, (J & S ? LANES + J - S : J)...);
        rows[i + S] = __builtin_shufflevector(a, b, (J & S ? LANES + J : J + S)...);
    }
}
INLINE void transpose(WordVector* rows) {
    using Lanes = Count<LANES>::Indices;
    swap_blocks<1>(rows, Lanes());
    swap_blocks<2>(rows, Lanes());
#if LANES > 4
    swap_blocks<4>(rows, Lanes());
#endif
#if LANES > 8
    swap_blocks<8>(rows, Lanes());
#endif
}

// Loads LANES words along k from one row of a source.
INLINE WordVector load_words(const float* source, float) {
    WordVector words;
    memcpy(&words, source, sizeof words);
    return words;
}
INLINE WordVector load_words(const bfloat16* source, bfloat16) {
    WordVector words;
    memcpy(&words, source, sizeof words);
    return words;
}
INLINE WordVector load_words(const float* source, bfloat16) {
    uint32_t words[LANES];
#pragma GCC ivdep
    for (int j = 0; j < LANES; j++)
        words[j] = rounded(bits_of(source[2 * j])) >> 16 | (rounded(bits_of(source[2 * j + 1])) & 0xffff0000);
    return load_words((const float*)words, 0.0f);
}

// Packs a panel from PANEL rows of the source: row j of the source is column j of B.
template <class E, class S>
void transpose_rows(const S* source, long stride, long num_k, long width, uint32_t* to) {
    const long num_words = words<E>(num_k), whole = num_k / (LANES * PER_WORD<E>) * LANES;
    for (long j = 0; j < PANEL; j += LANES) {
        for (long w = 0; w < whole; w += LANES) {
            WordVector rows[LANES] = {};
            for (int i = 0; i < LANES; i++)
                if (j + i < width) rows[i] = load_words(source + (j + i) * stride + w * PER_WORD<E>, E());
            transpose(rows);
            for (int i = 0; i < LANES; i++) memcpy(to + (w + i) * PANEL + j, &rows[i], sizeof rows[i]);
        }
    }
    for (long w = whole; w < num_words; w++)
        for (long j = 0; j < PANEL; j++) {
            const S* row = source + j * stride + w * PER_WORD<E>;
            typename Plain<S>::Type pair[2] = {};
            if (j < width) pair[0] = row[0];
            if (j < width && PER_WORD<E> * w + 1 < num_k) pair[1] = row[1];
            to[w * PANEL + j] = ZipWord<E>::of(pair, pair + 1, 0);
        }
}

// Packs columns [first, first + width) of B, which has num_k rows.
template <class E, bool TRANSPOSED, class S>
void pack_panels(Matrix<S> b, long num_k, long first, long width, uint32_t* to) {
    for (long j = 0; j < width; j += PANEL, to += words<E>(num_k) * PANEL) {
        const long columns = width - j < PANEL ? width - j : PANEL;
        if (TRANSPOSED)
            transpose_rows<E>(b.row(first + j), b.stride, num_k, columns, to);
        else
            zip_rows<E, PANEL>(b.data + first + j, b.stride, num_k, columns, to);
    }
}

// Where a product packs its operands; one for each thread.
struct Workspace {
    uint32_t* panels;  // PACKED_WORDS + PANEL * (most words of k)
    uint32_t* rows;    // PACKED_ROWS * (most words of k)
    float* strip;      // TILE_ROWS * STRIP_STRIDE
};
// 2 MiB: all panels of a usual weight. They are read in order, which the third-level cache is fast enough for, and a
// transposed A has to be packed only once; with half a MiB, in the second-level cache, gradients took 15% longer.
constexpr long PACKED_WORDS = 512 << 10;
constexpr long PACKED_ROWS = (TILE_ROWS + LANES - 1) / LANES * LANES;
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
    const long num_words = words<E>(num_k), at_once = columns_at_once(num_words, num_columns);
    const long num_blocks = (num_rows + TILE_ROWS - 1) / TILE_ROWS;
    for (long first = 0; first < num_columns; first += at_once) {
        const long width = num_columns - first < at_once ? num_columns - first : at_once;
        pack_panels<E, B_TRANSPOSED>(b, num_k, first, width, workspace.panels);
        for (long block = 0; block < num_blocks; block++) {
            // Blocks of almost equal height: one of a few rows would waste most of a tile.
            const long row = block * num_rows / num_blocks, height = (block + 1) * num_rows / num_blocks - row;
            const char* left = (const char*)a.row(row);
            long row_stride = a.stride * sizeof(SA), word_stride = 4;
            if (A_TRANSPOSED) {
                const long present = num_rows - row < PACKED_ROWS ? num_rows - row : PACKED_ROWS;
                zip_rows<E, PACKED_ROWS>(a.data + row, a.stride, num_k, present, workspace.rows);
                left = (const char*)workspace.rows, row_stride = 4, word_stride = 4 * PACKED_ROWS;
            }
            if constexpr (requires { finish.prefetch(row, first, width); })
                for (long i = 0; i < height; i++) finish.prefetch(row + i, first, width);
            const Tile compute = tile_of<E>(height, Count<TILE_ROWS>::Indices());
            for (long j = 0; j < width; j += PANEL)
                compute(left, row_stride, word_stride, workspace.panels + j * num_words, num_words, workspace.strip + j,
                        STRIP_STRIDE);
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
