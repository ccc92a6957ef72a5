// SPDX-License-Identifier: Apache-2.0
// Vectors of eight, whatever the instruction set: two or more registers where they are narrower.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tael {
namespace {

typedef float eight_f __attribute__((vector_size(32)));
typedef int32_t eight_i __attribute__((vector_size(32)));

inline eight_f all(float value) { return eight_f{} + value; }

inline eight_i widen_eight(const uint16_t* from) {
    typedef uint16_t eight_u16 __attribute__((vector_size(16)));
    eight_u16 value;
    memcpy(&value, from, 16);
    return __builtin_convertvector(value, eight_i);
}

// a < b ? a : b, so b where a is NaN.
inline eight_f least_eight(eight_f a, eight_f b) {
#if defined(__AVX2__)
    return eight_f(_mm256_min_ps(__m256(a), __m256(b)));
#else
    return a < b ? a : b;
#endif
}

// The least of all lanes, in all lanes.
inline eight_f least_of(eight_f a) {
#if defined(__AVX2__)
    __m256 v = __m256(a);
    v = _mm256_min_ps(v, _mm256_permute2f128_ps(v, v, 1));
    v = _mm256_min_ps(v, _mm256_permute_ps(v, 0x4E));
    return eight_f(_mm256_min_ps(v, _mm256_permute_ps(v, 0xB1)));
#else
    float least = a[0];
    for (int i = 1; i < 8; ++i) least = a[i] < least ? a[i] : least;
    return all(least);
#endif
}

// One bit per lane of a mask.
inline unsigned bits_of(eight_i mask) {
#if defined(__AVX2__)
    return unsigned(_mm256_movemask_ps(__m256(mask)));
#elif defined(__SSE2__)
    __m128 half[2];
    memcpy(half, &mask, 32);
    return unsigned(_mm_movemask_ps(half[0]) | _mm_movemask_ps(half[1]) << 4);
#elif defined(__aarch64__)
    const eight_i bits = mask & eight_i{1, 2, 4, 8, 16, 32, 64, 128};
    int32x4_t half[2];
    memcpy(half, &bits, 32);
    return unsigned(vaddvq_s32(vaddq_s32(half[0], half[1])));
#else
    unsigned bits = 0;
    for (int i = 0; i < 8; ++i) bits |= unsigned(mask[i] & 1) << i;
    return bits;
#endif
}

}  // namespace
}  // namespace tael
