// SPDX-License-Identifier: Apache-2.0
// The entry of the codebook nearest to eight values: weighted squared errors, each sum in the order of the reference.
// Of equally near entries the first of the list.
#pragma once

#include "iq1_table.h"
#include "iq_lanes.h"

namespace tael {
namespace {

#if defined(__AVX2__)
typedef __m256 iq1_sums;
constexpr int kIq1Wide = 8;

inline __m256 iq1_least(__m256 a) {
    a = _mm256_min_ps(a, _mm256_permute2f128_ps(a, a, 1));
    a = _mm256_min_ps(a, _mm256_permute_ps(a, 0x4E));
    return _mm256_min_ps(a, _mm256_permute_ps(a, 0xB1));
}
inline uint32_t iq1_equal(__m256 a, __m256 b) { return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))); }
#else
typedef vf iq1_sums;
constexpr int kIq1Wide = kLanes;
static_assert(kLanes == 4);

inline vf iq1_least(vf a) {
    const vf half = lower(a, __builtin_shufflevector(a, a, 2, 3, 0, 1));
    return lower(half, __builtin_shufflevector(half, half, 1, 0, 3, 2));
}
inline uint32_t iq1_equal(vf a, vf b) { return mask_bits(a == b); }
#endif

// Errors of each element by level.
struct Iq1Errors {
#if defined(__AVX2__)
    __m256 of[8];

    // x, weight: kLanes apart.
    Iq1Errors(const float* x, const float* weight, float scale, const float* values) {
        const __m256 levels = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(values));
        const __m256 reached = _mm256_mul_ps(_mm256_set1_ps(scale), levels);
        for (int i = 0; i < 8; ++i) {
            const __m256 off = _mm256_sub_ps(reached, _mm256_set1_ps(x[i * kLanes]));
            of[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(weight[i * kLanes]), off), off);
        }
    }
    __m256 sum(const uint16_t* codes) const {
        const __m256i code = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        __m256 total = _mm256_permutevar_ps(of[0], code);
        for (int i = 1; i < 8; ++i)
            total = _mm256_add_ps(total, _mm256_permutevar_ps(of[i], _mm256_srli_epi32(code, 2 * i)));
        return total;
    }
#else
    float first[256], rest[4][4];  // the first four elements' sums

    Iq1Errors(const float* x, const float* weight, float scale, const float* values) {
        float of[4][4];
        for (int i = 0; i < 8; ++i) {
            for (int level = 0; level < 4; ++level) {
                const float off = scale * values[level] - x[i * kLanes];
                (i < 4 ? of[i] : rest[i - 4])[level] = weight[i * kLanes] * off * off;
            }
        }
        for (int a = 0; a < 3; ++a) {
            for (int b = 0; b < 3; ++b) {
                const float two = of[0][a] + of[1][b];
                for (int c = 0; c < 3; ++c) {
                    const float three = two + of[2][c];
                    for (int d = 0; d < 3; ++d) first[a | b << 2 | c << 4 | d << 6] = three + of[3][d];
                }
            }
        }
    }
    vf sum(const uint16_t* codes) const {
        vf total;
        for (int lane = 0; lane < kLanes; ++lane) {
            const uint32_t code = codes[lane];
            total[lane] = first[code & 255] + rest[0][code >> 8 & 3] + rest[1][code >> 10 & 3] +
                          rest[2][code >> 12 & 3] + rest[3][code >> 14];
        }
        return total;
    }
#endif
};

constexpr float kIq1Farthest = 3.40282326e38f;  // the last float32 but one; sums beyond find no entry

// The code of the entry. The reference finds none and stops where all sums overflow; the first of the list then.
inline uint32_t iq1_nearest(const uint16_t (*lists)[8], uint32_t chunks, const Iq1Errors& errors) {
    constexpr int parts = 8 / kIq1Wide;
    const uint16_t* codes = lists[0];
    const int count = int(chunks) * parts;
    iq1_sums sums[kIq1Longest * parts], least = iq1_sums{} + kIq1Farthest;
    for (int i = 0; i < count; ++i) {
        sums[i] = errors.sum(codes + i * kIq1Wide);
#if defined(__AVX2__)
        least = _mm256_min_ps(sums[i], least);
#else
        least = lower(sums[i], least);
#endif
    }
    least = iq1_least(least);
    for (int i = 0; i < count; ++i)
        if (const uint32_t equal = iq1_equal(sums[i], least)) return codes[i * kIq1Wide + __builtin_ctz(equal)];
    return codes[0];
}

}  // namespace
}  // namespace tael
