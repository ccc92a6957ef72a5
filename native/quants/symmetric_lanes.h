// SPDX-License-Identifier: Apache-2.0
// Sub-blocks of sixteen floats in lanes: element e of sub-block s lies in lane s of vector e.
#pragma once

#include "../kernels/cast.h"
#include "lanes.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace tael {
namespace {

constexpr int kSub = 16, kSuper = 256, kSubs = kSuper / kSub;  // elements of a sub-block and of a block
constexpr float kTiniest = 1e-15f;  // a group whose largest magnitude is below counts as zero

typedef float quad __attribute__((vector_size(16)));

inline quad load_quad(const float* from) {
    quad value;
    memcpy(&value, from, sizeof value);
    return value;
}

// Four floats of each of kLanes places, `stride` floats apart, become four vectors.
inline void turn_four(const float* from, size_t stride, vf* to) {
#if defined(__AVX512F__)
    __m512 row[4];
    for (int r = 0; r < 4; ++r) {
        const float* at = from + size_t(r) * stride;
        __m512 all = _mm512_castps128_ps512(_mm_loadu_ps(at));
        all = _mm512_insertf32x4(all, _mm_loadu_ps(at + 4 * stride), 1);
        all = _mm512_insertf32x4(all, _mm_loadu_ps(at + 8 * stride), 2);
        row[r] = _mm512_insertf32x4(all, _mm_loadu_ps(at + 12 * stride), 3);
    }
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(row[0], row[1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(row[0], row[1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(row[2], row[3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(row[2], row[3]));
    to[0] = vf(_mm512_unpacklo_pd(a, c));
    to[1] = vf(_mm512_unpackhi_pd(a, c));
    to[2] = vf(_mm512_unpacklo_pd(b, d));
    to[3] = vf(_mm512_unpackhi_pd(b, d));
#elif defined(__AVX2__)
    __m256 row[4];
    for (int r = 0; r < 4; ++r) {
        const float* at = from + size_t(r) * stride;
        row[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)), _mm_loadu_ps(at + 4 * stride), 1);
    }
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(row[0], row[1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(row[0], row[1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(row[2], row[3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(row[2], row[3]));
    to[0] = vf(_mm256_unpacklo_pd(a, c));
    to[1] = vf(_mm256_unpackhi_pd(a, c));
    to[2] = vf(_mm256_unpacklo_pd(b, d));
    to[3] = vf(_mm256_unpackhi_pd(b, d));
#else
    static_assert(kLanes == 4, "four lanes without wider vectors");
    const quad p = load_quad(from), q = load_quad(from + stride);
    const quad r = load_quad(from + 2 * stride), s = load_quad(from + 3 * stride);
    const quad a = __builtin_shufflevector(p, q, 0, 4, 1, 5), b = __builtin_shufflevector(p, q, 2, 6, 3, 7);
    const quad c = __builtin_shufflevector(r, s, 0, 4, 1, 5), d = __builtin_shufflevector(r, s, 2, 6, 3, 7);
    to[0] = vf(__builtin_shufflevector(a, c, 0, 1, 4, 5));
    to[1] = vf(__builtin_shufflevector(a, c, 2, 3, 6, 7));
    to[2] = vf(__builtin_shufflevector(b, d, 0, 1, 4, 5));
    to[3] = vf(__builtin_shufflevector(b, d, 2, 3, 6, 7));
#endif
}

// Sixteen floats of each of kLanes places.
inline void turn(const float* from, size_t stride, vf* to) {
    for (int e = 0; e < kSub; e += 4) turn_four(from + e, stride, to + e);
}

// One value in every lane, the sign of zero kept.
inline vf spread(float value) { return value - vf{}; }

inline bool some(vi mask) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask(__m512i(mask)) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(__m256(mask)) != 0;
#elif defined(__SSE2__)
    return _mm_movemask_ps(__m128(mask)) != 0;
#else
    return any(mask);
#endif
}

inline vf square_root(vf a) {
#if defined(__AVX512F__)
    return vf(_mm512_sqrt_ps(__m512(a)));
#elif defined(__AVX2__)
    return vf(_mm256_sqrt_ps(__m256(a)));
#elif defined(__SSE2__)
    return vf(_mm_sqrt_ps(__m128(a)));
#else
    for (int lane = 0; lane < kLanes; ++lane) a[lane] = __builtin_sqrtf(a[lane]);
    return a;
#endif
}

inline void put_f16(uint8_t* to, float value) {
    uint32_t overflows = 0;
    const uint16_t code = uint16_t(narrow_one<F16, false>(as_bits(value), overflows));
    memcpy(to, &code, sizeof code);
}
inline float get_f16(const uint8_t* from) {
    uint16_t code;
    memcpy(&code, from, sizeof code);
    return as_float(widen_one<F16>(code));
}

// The smaller and the larger, b where either is NaN. (GCC 12 makes a comparison and a slow blend of `a < b ? a : b`.)
inline vf least(vf a, vf b) {
#if defined(__AVX512F__)
    return vf(_mm512_min_ps(__m512(a), __m512(b)));
#elif defined(__AVX2__)
    return vf(_mm256_min_ps(__m256(a), __m256(b)));
#elif defined(__SSE2__)
    return vf(_mm_min_ps(__m128(a), __m128(b)));
#else
    return a < b ? a : b;
#endif
}
inline vf greatest(vf a, vf b) {
#if defined(__AVX512F__)
    return vf(_mm512_max_ps(__m512(a), __m512(b)));
#elif defined(__AVX2__)
    return vf(_mm256_max_ps(__m256(a), __m256(b)));
#elif defined(__SSE2__)
    return vf(_mm_max_ps(__m128(a), __m128(b)));
#else
    return a > b ? a : b;
#endif
}

// Integers held in [-reach, reach - 1].
template <int reach>
inline vi held(vi a) {
#if defined(__AVX512F__)
    return vi(_mm512_max_epi32(_mm512_min_epi32(__m512i(a), _mm512_set1_epi32(reach - 1)), _mm512_set1_epi32(-reach)));
#elif defined(__AVX2__)
    return vi(_mm256_max_epi32(_mm256_min_epi32(__m256i(a), _mm256_set1_epi32(reach - 1)), _mm256_set1_epi32(-reach)));
#else
    return higher(lower(a, splat_i(reach - 1)), splat_i(-reach));
#endif
}

// Thirty-two codes: integers held in [-reach, reach - 1], plus reach.
template <int reach>
inline void put_codes(const vi* integers, int8_t* code) {
#if defined(__AVX512BW__)
    for (int half = 0; half < 2; ++half) {
        const __m128i bytes =
            _mm_add_epi8(_mm512_cvtepi32_epi8(__m512i(held<reach>(integers[half]))), _mm_set1_epi8(reach));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(code + 16 * half), bytes);
    }
#elif defined(__AVX2__)
    const __m256i top = _mm256_set1_epi16(reach - 1), bottom = _mm256_set1_epi16(-reach);
    __m256i a = _mm256_packs_epi32(__m256i(integers[0]), __m256i(integers[1]));
    __m256i b = _mm256_packs_epi32(__m256i(integers[2]), __m256i(integers[3]));
    a = _mm256_max_epi16(_mm256_min_epi16(a, top), bottom);
    b = _mm256_max_epi16(_mm256_min_epi16(b, top), bottom);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(code), _mm256_add_epi8(bytes, _mm256_set1_epi8(reach)));
#elif defined(__SSE2__)
    const __m128i top = _mm_set1_epi16(reach - 1), bottom = _mm_set1_epi16(-reach);
    for (int half = 0; half < 2; ++half) {
        const vi* from = integers + 4 * half;
        __m128i a = _mm_packs_epi32(__m128i(from[0]), __m128i(from[1]));
        __m128i b = _mm_packs_epi32(__m128i(from[2]), __m128i(from[3]));
        a = _mm_max_epi16(_mm_min_epi16(a, top), bottom);
        b = _mm_max_epi16(_mm_min_epi16(b, top), bottom);
        const __m128i bytes = _mm_add_epi8(_mm_packs_epi16(a, b), _mm_set1_epi8(reach));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(code + 16 * half), bytes);
    }
#else
    typedef int8_t bytes __attribute__((vector_size(kLanes)));
    for (int part = 0; part < 32 / kLanes; ++part) {
        const bytes narrow = __builtin_convertvector(held<reach>(integers[part]) + reach, bytes);
        memcpy(code + part * kLanes, &narrow, sizeof narrow);
    }
#endif
}

// The codes of a block by the final scales of its sub-blocks.
template <int reach>
inline void codes_by_scales(const float* x, const float* scales, int8_t* code) {
    for (int s = 0; s < kSubs; s += 2) {
        vi integers[32 / kLanes];
#pragma GCC unroll 8
        for (int part = 0; part < 32 / kLanes; ++part)
            integers[part] = nearest(load(x + s * kSub + part * kLanes) / spread(scales[s + part * kLanes / kSub]));
        put_codes<reach>(integers, code + s * kSub);
    }
}

// Writes 16 products of a scale and codes.
inline void put_products(float scale, const int8_t* code, float* out) {
    const vf scales = spread(scale);
#pragma GCC unroll 4
    for (int i = 0; i < kSub; i += kLanes) {
#if defined(__AVX512F__)
        const vi wide = vi(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(code + i))));
#elif defined(__AVX2__)
        const vi wide = vi(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(code + i))));
#else
        typedef int8_t bytes __attribute__((vector_size(kLanes)));
        bytes narrow;
        memcpy(&narrow, code + i, sizeof narrow);
        const vi wide = __builtin_convertvector(narrow, vi);
#endif
        store(out + i, scales * to_float(wide));
    }
}

}  // namespace
}  // namespace tael
