// SPDX-License-Identifier: Apache-2.0
// For the IQ1 and IQ4 types: kLanes blocks side by side, one in each lane, and the bytes of blocks.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../kernels/cast.h"
#include "lanes.h"

namespace tael {
namespace {

typedef float quad __attribute__((vector_size(16)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));

// By way of integers: zero + value would lose the sign of a zero.
inline vf every(float value) { return vf(splat_i(int32_t(as_bits(value)))); }

template <class V>
inline V read(const void* from) {
    V value;
    memcpy(&value, from, sizeof value);
    return value;
}
template <class V>
inline void write(void* to, V value) {
    memcpy(to, &value, sizeof value);
}

// Bit i of the result: lane i of a mask.
inline uint32_t mask_bits(vi mask) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
    return uint32_t(_mm256_movemask_ps((__m256)mask));
#elif defined(__SSE2__)
    return uint32_t(_mm_movemask_ps((__m128)mask));
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= uint32_t(mask[lane] & 1) << lane;
    return bits;
#endif
}
inline bool some(vi mask) { return mask_bits(mask) != 0; }

// The larger, b where either is NaN.
inline vf larger(vf a, vf b) {
#if defined(__AVX512F__)
    return vf(_mm512_max_ps((__m512)a, (__m512)b));
#elif defined(__AVX2__)
    return vf(_mm256_max_ps((__m256)a, (__m256)b));
#elif defined(__SSE2__)
    return vf(_mm_max_ps((__m128)a, (__m128)b));
#else
    return higher(a, b);
#endif
}

inline vf square_roots(vf a) {
#if defined(__AVX512F__)
    return vf(_mm512_sqrt_ps((__m512)a));
#elif defined(__AVX2__)
    return vf(_mm256_sqrt_ps((__m256)a));
#elif defined(__SSE2__)
    return vf(_mm_sqrt_ps((__m128)a));
#else
    for (int lane = 0; lane < kLanes; ++lane) a[lane] = __builtin_sqrtf(a[lane]);
    return a;
#endif
}

// Four vectors of four become their columns.
inline void turn(quad (&q)[4]) {
    const quad a = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5), b = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5);
    const quad c = __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7), d = __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
    q[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5), q[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    q[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5), q[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

// Blocks first..first + kLanes - 1, beyond the end the last again.
struct BlockLanes {
    const float *source[kLanes], *importance[kLanes];

    BlockLanes(const float* from, const float* importances, size_t block, size_t first, size_t count,
               size_t row_length) {
        for (size_t lane = 0; lane < size_t(kLanes); ++lane) {
            const size_t at = (first + lane < count ? first + lane : count - 1) * block;
            source[lane] = from + at;
            importance[lane] = importances ? importances + at % row_length : nullptr;
        }
    }

    // Elements at..at + n - 1 of each row, n a multiple of four.
    static void read_rows(const float* const (&rows)[kLanes], size_t at, size_t n, vf* out) {
        for (size_t i = 0; i < n; i += 4) {
            for (int first = 0; first < kLanes; first += 4) {
                quad q[4];
                for (int k = 0; k < 4; ++k) q[k] = read<quad>(rows[first + k] + at + i);
                turn(q);
                for (size_t k = 0; k < 4; ++k)
                    memcpy(reinterpret_cast<float*>(out + i + k) + first, &q[k], sizeof(quad));
            }
        }
    }
    void read_x(size_t at, size_t n, vf* x) const { read_rows(source, at, n, x); }

    // Sum of squares, in order.
    vf squares(size_t n) const {
        vf sum = every(0.0f), four[4];
        for (size_t at = 0; at < n; at += 4) {
            read_x(at, 4, four);
            for (const vf& x : four) sum += x * x;
        }
        return sum;
    }

    // Weights of elements: by importance and the mean of squares, else their squares.
    void weigh(size_t at, size_t n, vf sigma, const vf* x, vf* weight) const {
        if (importance[0]) {
            read_rows(importance, at, n, weight);
            for (size_t i = 0; i < n; ++i) weight[i] *= square_roots(sigma + x[i] * x[i]);
        } else {
            for (size_t i = 0; i < n; ++i) weight[i] = x[i] * x[i];
        }
    }
};

inline uint16_t to_half(float value) {
    uint32_t overflows = 0;
    return uint16_t(narrow_one<F16, false>(as_bits(value), overflows));
}
inline float from_half(uint16_t code) { return as_float(widen_one<F16>(code)); }

inline void put_half(uint8_t* to, uint32_t code) { write(to, uint16_t(code)); }

}  // namespace
}  // namespace tael
