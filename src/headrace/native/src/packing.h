// Operands of matrix products: where they lie, and how they are packed.
//
// Operands are made of 32-bit words along the inner dimension K: one float32, or two bfloat16 (k and k + 1).
#pragma once
#include "vectors.h"

namespace ISA {

template <class E> constexpr long PER_WORD = 4 / sizeof(E);  // numbers of k in a word
template <class E> constexpr long words(long k) { return (k + PER_WORD<E> - 1) / PER_WORD<E>; }

template <int... I> struct Sequence {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> {
    using Indices = Sequence<I...>;  // 0, 1, ..., N - 1
};

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

}  // namespace ISA
