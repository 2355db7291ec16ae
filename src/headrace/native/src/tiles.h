// Tiles of a matrix product: some rows of A times a panel of PANEL columns of B, for one thread.
//
// B is packed panel by panel (for each word of k, PANEL words). Each kind of tile says how many rows it has (ROWS), to
// how many words the inner dimension of a panel is filled up with zeros (packed_words), how much memory it needs for
// rows of A (row_words), and how these are taken from a matrix (Left).
#pragma once
#include "packing.h"
#ifdef __AMX_BF16__
#include <immintrin.h>
#endif

namespace ISA {

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

using Tile = void (*)(const char*, long, long, const uint32_t*, long, float*, long);
template <class E, int... I> Tile tile_of(long rows, Sequence<I...>) {
    static constexpr Tile by_rows[] = {compute_tile<E, I + 1>...};
    return by_rows[rows - 1];
}

// Tiles in vector registers. Rows of A are read where they are, or packed where A is transposed.
template <class E> struct VectorTiles {
    static constexpr long ROWS = TILE_ROWS;
    static constexpr long PACKED_ROWS = (ROWS + LANES - 1) / LANES * LANES;
    static constexpr long packed_words(long k) { return words<E>(k); }
    static constexpr long row_words(long k) { return PACKED_ROWS * words<E>(k); }

    // `height` rows of A, from `row` on.
    template <bool TRANSPOSED, class S> struct Left {
        const char* first;
        long row_stride, word_stride;
        Tile tile;

        Left(Matrix<S> a, long num_rows, long num_k, long row, long height, uint32_t* packed)
            : first((const char*)a.row(row)), row_stride(a.stride * sizeof(S)), word_stride(4),
              tile(tile_of<E>(height, Count<ROWS>::Indices())) {
            if (!TRANSPOSED) return;
            const long present = num_rows - row < PACKED_ROWS ? num_rows - row : PACKED_ROWS;
            zip_rows<E, PACKED_ROWS>(a.data + row, a.stride, num_k, present, packed);
            first = (const char*)packed, row_stride = 4, word_stride = 4 * PACKED_ROWS;
        }
        void compute(const uint32_t* panel, long num_words, float* to, long to_stride) const {
            tile(first, row_stride, word_stride, panel, num_words, to, to_stride);
        }
    };
};
template <class E> struct TilesOf {
    using Type = VectorTiles<E>;
};

#ifdef __AMX_BF16__
// Tiles in the processor's own registers for matrices: two times 16 rows of A by two times 16 columns of a panel, 16
// words of k at a time. Behind the last word of a row, other numbers may lie: words that do not fill such a step are
// copied, with zeros behind them, and panels end with zeros.
struct MatrixTiles {
    static constexpr long SIDE = 16;  // rows of a register, and words of each
    static constexpr long ROWS = 2 * SIDE;
    static constexpr long packed_words(long k) { return (words<bfloat16>(k) + SIDE - 1) / SIDE * SIDE; }
    static constexpr long row_words(long k) { return ROWS * packed_words(k); }
    static_assert(PANEL == 2 * SIDE && LANES == SIDE);

    // What the processor wants to know of its registers: 0 to 3 hold sums, 4 and 5 rows of A, 6 and 7 a panel.
    struct alignas(64) Shapes {
        uint8_t palette = 1, first_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};

        explicit Shapes(long height) {
            const uint8_t upper = height < SIDE ? height : SIDE, lower = height - upper;
            const uint8_t all[] = {upper, upper, lower, lower, upper, lower, SIDE, SIDE};
            for (int i = 0; i < 8; i++) rows[i] = all[i], row_bytes[i] = all[i] ? 4 * SIDE : 0;
        }
    };

    // `height` rows of A, from `row` on. The registers have their shape until it is gone.
    template <bool TRANSPOSED, class S> struct Left {
        const char *first, *rest;  // the rows, and those of the words that do not fill a step
        long row_stride, rest_stride, num_whole;
        const bool is_tall;

        Left(Matrix<S> a, long num_rows, long num_k, long row, long height, uint32_t* packed)
            : first((const char*)a.row(row)), rest((const char*)packed), row_stride(a.stride * sizeof(S)),
              rest_stride(4 * SIDE), num_whole(words<bfloat16>(num_k) / SIDE * SIDE), is_tall(height > SIDE) {
            if (TRANSPOSED)
                pack_transposed(a, num_rows, num_k, row, packed);
            else
                copy_rest(words<bfloat16>(num_k) - num_whole, height, packed);
            const Shapes shapes(height);
            __asm__ volatile("" ::"r"(&shapes) : "memory");  // GCC before 14 believes that only 8 bytes of it are read
            _tile_loadconfig(&shapes);
        }
        ~Left() { _tile_release(); }

        void pack_transposed(Matrix<S> a, long num_rows, long num_k, long row, uint32_t* packed) {
            const long present = num_rows - row < ROWS ? num_rows - row : ROWS, num_words = packed_words(num_k);
            for (long w = 0; w < num_words; w += SIDE) {
                uint32_t zipped[SIDE * ROWS];
                const long k = w * PER_WORD<bfloat16>;
                const long count = num_k - k < 2 * SIDE ? num_k - k : 2 * SIDE, filled = words<bfloat16>(count);
                zip_rows<bfloat16, ROWS>(a.data + k * a.stride + row, a.stride, count, present, zipped);
                memset(zipped + filled * ROWS, 0, 4 * ROWS * (SIDE - filled));
                for (long part = 0; part < ROWS; part += SIDE) {
                    WordVector block[SIDE];
                    for (long i = 0; i < SIDE; i++) memcpy(&block[i], zipped + i * ROWS + part, sizeof block[i]);
                    transpose(block);
                    for (long i = 0; i < SIDE; i++)
                        memcpy(packed + (part + i) * num_words + w, &block[i], sizeof block[i]);
                }
            }
            first = (const char*)packed, row_stride = rest_stride = 4 * num_words;
            rest = first + 4 * num_whole;
        }

        void copy_rest(long num_words, long height, uint32_t* to) const {
            for (long i = 0; num_words && i < height; i++, to += SIDE) {
                memset(to, 0, 4 * SIDE);
                memcpy(to, first + i * row_stride + 4 * num_whole, 4 * num_words);
            }
        }

        INLINE void step(const char* a, long stride, const uint32_t* panel) const {
            _tile_loadd(6, panel, 4 * PANEL);
            _tile_loadd(7, panel + SIDE, 4 * PANEL);
            _tile_loadd(4, a, stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (!is_tall) return;
            _tile_loadd(5, a + SIDE * stride, stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }

        void compute(const uint32_t* panel, long num_words, float* to, long to_stride) const {
            // Loads into these registers do not say that they read memory: all that was written must be there.
            __asm__ volatile("" ::: "memory");
            _tile_zero(0);
            _tile_zero(1);
            if (is_tall) {
                _tile_zero(2);
                _tile_zero(3);
            }
            for (long k = 0; k < num_whole; k += SIDE) step(first + 4 * k, row_stride, panel + k * PANEL);
            if (num_whole < num_words) step(rest, rest_stride, panel + num_whole * PANEL);
            _tile_stored(0, to, 4 * to_stride);
            _tile_stored(1, to + SIDE, 4 * to_stride);
            if (is_tall) {
                _tile_stored(2, to + SIDE * to_stride, 4 * to_stride);
                _tile_stored(3, to + SIDE * to_stride + SIDE, 4 * to_stride);
            }
            __asm__ volatile("" ::: "memory");
        }
    };
};
template <> struct TilesOf<bfloat16> {
    using Type = MatrixTiles;
};
#endif
template <class E> using Tiles = typename TilesOf<E>::Type;

}  // namespace ISA
