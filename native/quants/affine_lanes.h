// SPDX-License-Identifier: Apache-2.0
// Blocks into lanes, and the rounding of the reference for every value that a float can have.
#pragma once

#include "lanes.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tael {
namespace {

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added to |v| < 2^22, it leaves the nearest integer

// True when any lane of a mask (all ones or zero) is set.
inline bool any_of(vi mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask(__m512i(mask), __m512i(mask)) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(__m256(mask)) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps(__m128(mask)) != 0;
#else
    return any(mask);
#endif
}

// a < b ? a : b and a > b ? a : b as one instruction each, which compilers miss next to constants.
#if defined(__AVX512F__)
inline vf least(vf a, vf b) { return vf(_mm512_min_ps(__m512(a), __m512(b))); }
inline vf most(vf a, vf b) { return vf(_mm512_max_ps(__m512(a), __m512(b))); }
#elif defined(__AVX2__)
inline vf least(vf a, vf b) { return vf(_mm256_min_ps(__m256(a), __m256(b))); }
inline vf most(vf a, vf b) { return vf(_mm256_max_ps(__m256(a), __m256(b))); }
#elif defined(__SSE2__)
inline vf least(vf a, vf b) { return vf(_mm_min_ps(__m128(a), __m128(b))); }
inline vf most(vf a, vf b) { return vf(_mm_max_ps(__m128(a), __m128(b))); }
#else
inline vf least(vf a, vf b) { return lower(a, b); }
inline vf most(vf a, vf b) { return higher(a, b); }
#endif

#if defined(__AVX2__)
// Eight floats of each of eight rows; out[i * kLanes + row].
inline void transpose8(const float* const* rows, size_t at, float* out) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows[i] + at);
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(out + i * kLanes, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * kLanes, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#endif

// 1 / (level + 1/2) by the last bits of `level`, 0 for 3.
#if defined(__AVX512F__)
constexpr bool kLookup = true;
inline vf next_of_four(vf level) {
    return vf(_mm512_permutexvar_ps(__m512i(level), _mm512_setr4_ps(2.0f, 1 / 1.5f, 1 / 2.5f, 0.0f)));
}
#elif defined(__AVX2__)
constexpr bool kLookup = true;
inline vf next_of_four(vf level) {
    const __m256 table = _mm256_setr_ps(2.0f, 1 / 1.5f, 1 / 2.5f, 0.0f, 2.0f, 1 / 1.5f, 1 / 2.5f, 0.0f);
    return vf(_mm256_permutevar8x32_ps(table, __m256i(level)));
}
#else
constexpr bool kLookup = false;
inline vf next_of_four(vf) { return vf{}; }
#endif

// kLanes bytes as integers.
inline vi widen_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return vi(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    return vi(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__SSE2__)
    int32_t word;
    memcpy(&word, from, sizeof word);
    const __m128i zero = _mm_setzero_si128();
    return vi(_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(word), zero), zero));
#else
    typedef uint8_t vb __attribute__((vector_size(kLanes)));
    vb bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, vi);
#endif
}

// 32 integers (8-bit, or beyond it to either side) to bytes between 0 and `top`.
inline void put_clamped(const vi* from, int top, uint8_t* to) {
#if defined(__AVX512F__)
    for (int i = 0; i < 2; ++i) {
        const __m512i some = _mm512_max_epi32(__m512i(from[i]), _mm512_setzero_si512());
        const __m512i bytes = _mm512_min_epi32(some, _mm512_set1_epi32(top));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), _mm512_cvtepi32_epi8(bytes));
    }
#elif defined(__AVX2__)
    const __m256i a = _mm256_packs_epi32(__m256i(from[0]), __m256i(from[1]));
    const __m256i b = _mm256_packs_epi32(__m256i(from[2]), __m256i(from[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_min_epu8(_mm256_packus_epi16(a, b), _mm256_set1_epi8(char(top)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
#elif defined(__SSE2__)
    for (int i = 0; i < 2; ++i, from += 4, to += 16) {
        const __m128i a = _mm_packs_epi32(__m128i(from[0]), __m128i(from[1]));
        const __m128i b = _mm_packs_epi32(__m128i(from[2]), __m128i(from[3]));
        const __m128i bytes = _mm_min_epu8(_mm_packus_epi16(a, b), _mm_set1_epi8(char(top)));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    }
#else
    for (int i = 0; i < 32 / kLanes; ++i) {
        const vi some = higher(splat_i(0), lower(splat_i(top), from[i]));
        for (int lane = 0; lane < kLanes; ++lane) *to++ = uint8_t(some[lane]);
    }
#endif
}

// Element i of the row of each lane; `count` elements, a multiple of 8.
inline void spread(const float* const* rows, size_t count, vf* out) {
    float* to = reinterpret_cast<float*>(out);
#if defined(__AVX2__)
    for (size_t i = 0; i < count; i += 8)
        for (int lane = 0; lane < kLanes; lane += 8) transpose8(rows + lane, i, to + i * kLanes + lane);
#elif defined(__SSE2__)
    for (size_t i = 0; i < count; i += 4) {
        __m128 a = _mm_loadu_ps(rows[0] + i), b = _mm_loadu_ps(rows[1] + i);
        __m128 c = _mm_loadu_ps(rows[2] + i), d = _mm_loadu_ps(rows[3] + i);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_storeu_ps(to + i * 4, a), _mm_storeu_ps(to + i * 4 + 4, b);
        _mm_storeu_ps(to + i * 4 + 8, c), _mm_storeu_ps(to + i * 4 + 12, d);
    }
#else
    for (size_t i = 0; i < count; ++i)
        for (int lane = 0; lane < kLanes; ++lane) to[i * kLanes + lane] = rows[lane][i];
#endif
}

}  // namespace
}  // namespace tael
