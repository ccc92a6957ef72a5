// SPDX-License-Identifier: Apache-2.0
// The entry of a codebook nearest to the values of one group: eight candidates at a time, each sum in the order of the
// reference. Of equally near candidates the first of the list.
#pragma once

#include "grid_table.h"
#include "lanes.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tael {
namespace {

constexpr int kLongestList = 40;  // chunks
// Sums beyond (overflows, of absurd values) find no entry; all levels are zero then.
constexpr float kFarthest = 3.40282326e38f;

// Levels of a code as the odd numbers the scale multiplies.
template <class Book>
inline vf odd_level(vi code, int i) {
    const vi level = code >> (Book::bits * i) & ((1 << Book::point_bits) - 1);
    return to_float(level + level + 1);
}

#if defined(__AVX2__)

inline __m256 least_of(__m256 a) {
    a = _mm256_min_ps(a, _mm256_permute2f128_ps(a, a, 1));
    a = _mm256_min_ps(a, _mm256_permute_ps(a, 0x4E));
    return _mm256_min_ps(a, _mm256_permute_ps(a, 0xB1));
}
inline unsigned equal_lanes(__m256 a, __m256 b) {
    return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)));
}

// x, w: the group's values and weights, kLanes apart. Returns the code.
template <class Book>
inline uint32_t nearest_entry(const uint16_t* codes, uint32_t chunks, const float* x, const float* w, float scale) {
    constexpr int dims = Book::dims;
    const __m256 odd = dims == 8 ? _mm256_setr_ps(1, 3, 5, 7, 1, 3, 5, 7) : _mm256_setr_ps(1, 3, 5, 7, 9, 11, 13, 15);
    const __m256 reached = _mm256_mul_ps(_mm256_set1_ps(scale), odd);
    __m256 terms[dims];  // of the sum, by level
    for (int i = 0; i < dims; ++i) {
        const __m256 off = _mm256_sub_ps(reached, _mm256_set1_ps(x[i * kLanes]));
        terms[i] = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(w[i * kLanes]), off), off);
    }
    const auto sum = [&](const uint16_t* chunk) {
        const __m256i code = _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(chunk)));
        __m256 total;
        for (int i = 0; i < dims; ++i) {
            const __m256i level = _mm256_srli_epi32(code, Book::bits * i);
            const __m256 term =
                dims == 8 ? _mm256_permutevar_ps(terms[i], level) : _mm256_permutevar8x32_ps(terms[i], level);
            total = i == 0 ? term : _mm256_add_ps(total, term);
        }
        return total;
    };
    const __m256 first = sum(codes);
    __m256 least = _mm256_min_ps(first, _mm256_set1_ps(kFarthest));
    if (chunks == 1) {
        const unsigned equal = equal_lanes(first, least_of(least));
        return equal ? codes[__builtin_ctz(equal)] : 0u;
    }
    __m256 sums[kLongestList];
    sums[0] = first;
    for (uint32_t k = 1; k < chunks; ++k) {
        sums[k] = sum(codes + 8 * k);
        least = _mm256_min_ps(sums[k], least);
    }
    least = least_of(least);
    for (uint32_t k = 0; k < chunks; k += 4) {
        unsigned equal = 0;
        for (uint32_t j = 0; j < 4 && k + j < chunks; ++j) equal |= equal_lanes(sums[k + j], least) << (8 * j);
        if (equal) return codes[8 * k + unsigned(__builtin_ctz(equal))];
    }
    return 0;
}

#else

template <class Book>
inline uint32_t nearest_entry(const uint16_t* codes, uint32_t chunks, const float* x, const float* w, float scale) {
    constexpr int parts = 8 / kLanes;
    vf sums[kLongestList * parts], least = splat(kFarthest);
    for (uint32_t k = 0; k < chunks * parts; ++k) {
        vi code;
        for (int lane = 0; lane < kLanes; ++lane) code[lane] = codes[k * kLanes + unsigned(lane)];
        vf total{};
        for (int i = 0; i < Book::dims; ++i) {
            const vf off = scale * odd_level<Book>(code, i) - x[i * kLanes];
            total += w[i * kLanes] * off * off;
        }
        sums[k] = total;
        least = lower(total, least);
    }
    float smallest = least[0];
    for (int lane = 1; lane < kLanes; ++lane) smallest = least[lane] < smallest ? least[lane] : smallest;
    for (uint32_t k = 0; k < chunks * parts; ++k) {
        const vi equal = sums[k] == smallest;
        if (!any(equal)) continue;
        for (int lane = 0; lane < kLanes; ++lane)
            if (equal[lane]) return codes[k * kLanes + unsigned(lane)];
    }
    return 0;
}

#endif

// The code for one lattice point, with kLooked set if the point is no entry.
constexpr int32_t kLooked = 0x10000;

template <class Book>
inline int32_t entry_near(const NearTable<Book>& table, int32_t point, const float* x, const float* w, float scale) {
    const uint32_t list = table.lists[point];
    const uint16_t* codes = table.codes + 8 * (list >> 8);
    if (!(list & kOffGrid)) return codes[0];
    return int32_t(nearest_entry<Book>(codes, list & kChunkCount, x, w, scale)) | kLooked;
}

}  // namespace
}  // namespace tael
