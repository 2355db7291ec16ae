// Vectors of the widest kind that an instruction set has, and the two number formats of matrix products.
//
// Every kernel source is compiled once for each instruction set, in a namespace of its own (ISA). Nothing here may come
// from the C++ library's templates: the linker would keep one copy of them, with instructions that a machine may lack.
#pragma once
#include <cstdint>
#include <cstring>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16   // numbers in a vector
#define TILE_ROWS 14  // rows of a product that are computed at a time: 28 of 32 registers hold sums
#elif defined(__AVX__)
#define LANES 8
#define TILE_ROWS 6
#else
#define LANES 4
#define TILE_ROWS 6
#endif

#define INLINE inline __attribute__((always_inline))

namespace ISA {

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef float LooseVector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t WordVector __attribute__((vector_size(LANES * 4)));
constexpr long PANEL = 2 * LANES;  // columns of a product that are computed at a time

struct bfloat16 {
    uint16_t bits;
};

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
// Rounds to the nearest bfloat16, in the upper half of the word.
INLINE uint32_t rounded(uint32_t bits) { return bits + 0x7fff + ((bits >> 16) & 1); }

INLINE float load(float x) { return x; }
INLINE float load(bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }
INLINE void store(float& to, float x) { to = x; }
INLINE void store(bfloat16& to, float x) { to.bits = uint16_t(rounded(bits_of(x)) >> 16); }

INLINE float exponential(float x) {
    // 2^n * e^r, |r| <= log(2)/2; the polynomial's error is below 2 units in the last place. Below -87: 0.
    float clamped = x > 88.0f ? 88.0f : x;
    float n = __builtin_rintf(clamped * 1.44269504f);
    float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    float scaled = float_of(bits_of(p) + (uint32_t(int32_t(n)) << 23));
    return x < -87.0f ? 0.0f : scaled;
}
INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace ISA
