// SPDX-License-Identifier: Apache-2.0
// From vectors of floats to the bytes of a block: packing of 32 codes, bit masks, float16 scales many at a time, and
// reductions within blocks.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "../kernels/cast.h"
#include "lanes.h"

namespace tael {
namespace {

typedef uint8_t bytes32 __attribute__((vector_size(32)));
typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef float quad __attribute__((vector_size(16)));

constexpr int kPer32 = 32 / kLanes;  // vectors in 32 elements

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

// a < b ? a : b and a > b ? a : b. Compilers often make a comparison and a slow blend of that.
struct Smaller {
    template <class V>
    V operator()(V a, V b) const {
#if defined(__AVX512F__)
        if constexpr (sizeof(V) == 64) return V(_mm512_min_ps((__m512)a, (__m512)b));
#endif
#if defined(__AVX2__)
        if constexpr (sizeof(V) == 32) return V(_mm256_min_ps((__m256)a, (__m256)b));
#endif
#if defined(__SSE2__)
        if constexpr (sizeof(V) == 16) return V(_mm_min_ps((__m128)a, (__m128)b));
#endif
        return a < b ? a : b;
    }
};
struct Larger {
    template <class V>
    V operator()(V a, V b) const {
#if defined(__AVX512F__)
        if constexpr (sizeof(V) == 64) return V(_mm512_max_ps((__m512)a, (__m512)b));
#endif
#if defined(__AVX2__)
        if constexpr (sizeof(V) == 32) return V(_mm256_max_ps((__m256)a, (__m256)b));
#endif
#if defined(__SSE2__)
        if constexpr (sizeof(V) == 16) return V(_mm_max_ps((__m128)a, (__m128)b));
#endif
        return a > b ? a : b;
    }
};

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

// 32 integers of -128..127 as bytes, in order.
inline bytes32 pack(const vi (&v)[kPer32]) {
#if defined(__AVX512BW__)
    const __m128i low = _mm512_cvtepi32_epi8((__m512i)v[0]), high = _mm512_cvtepi32_epi8((__m512i)v[1]);
    return bytes32(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
#elif defined(__AVX2__)
    const __m256i a = _mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]);
    const __m256i b = _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return bytes32(_mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
#elif defined(__SSE2__)
    bytes32 all;
    for (int half = 0; half < 2; ++half) {
        const vi* h = v + 4 * half;
        const __m128i part = _mm_packs_epi16(_mm_packs_epi32((__m128i)h[0], (__m128i)h[1]),
                                             _mm_packs_epi32((__m128i)h[2], (__m128i)h[3]));
        memcpy(reinterpret_cast<char*>(&all) + 16 * half, &part, 16);
    }
    return all;
#else
    int32_t flat[32];
    int8_t narrow[32];
    memcpy(flat, v, sizeof flat);
    for (int i = 0; i < 32; ++i) narrow[i] = int8_t(flat[i]);
    return read<bytes32>(narrow);
#endif
}

inline bytes16 low_half(bytes32 v) { return read<bytes16>(&v); }
inline bytes16 high_half(bytes32 v) { return read<bytes16>(reinterpret_cast<const char*>(&v) + 16); }

inline bytes32 at_most(bytes32 v, uint8_t most) {
#if defined(__AVX2__)
    return bytes32(_mm256_min_epu8((__m256i)v, _mm256_set1_epi8(int8_t(most))));
#else
    const bytes32 limit = bytes32{} + most;
    return v < limit ? v : limit;
#endif
}

// Codes below 16: element j in the low half of byte j, element j + 16 in the high half.
inline bytes16 join_nibbles(bytes32 codes) {
    typedef uint16_t words8 __attribute__((vector_size(16)));
    return low_half(codes) | bytes16(words8(high_half(codes)) << 4);
}

// Bit i of the result is bit `bit` of byte i.
inline uint32_t bits_of(bytes32 v, int bit) {
#if defined(__AVX2__)
    return uint32_t(_mm256_movemask_epi8(_mm256_slli_epi16((__m256i)v, 7 - bit)));
#elif defined(__SSE2__)
    const __m128i low = _mm_slli_epi16((__m128i)low_half(v), 7 - bit);
    const __m128i high = _mm_slli_epi16((__m128i)high_half(v), 7 - bit);
    return uint32_t(_mm_movemask_epi8(low)) | uint32_t(_mm_movemask_epi8(high)) << 16;
#else
    uint32_t bits = 0;
    for (int i = 0; i < 32; ++i) bits |= uint32_t(v[i] >> bit & 1) << i;
    return bits;
#endif
}

// The float16 of each lane, in the low 16 bits.
inline void write_halves(vf values, uint32_t* out) {
    uint32_t bits[kLanes], ignored = 0;
    memcpy(bits, &values, sizeof bits);
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = narrow_one<F16, false>(bits[lane], ignored);
}

// Lane i of the result: the largest (smallest) lane of rows[i].
template <class Pick>
inline vf fold(const vf (&rows)[kLanes], Pick pick) {
    vf folded;
    for (int first = 0; first < kLanes; first += 4) {
        quad q[4];
        for (int i = 0; i < 4; ++i) {
            quad parts[kLanes / 4];
            memcpy(parts, &rows[first + i], sizeof parts);
            for (int width = kLanes / 8; width != 0; width /= 2)
                for (int k = 0; k < width; ++k) parts[k] = pick(parts[k], parts[k + width]);
            q[i] = parts[0];
        }
        quad two[2];
        for (int i = 0; i < 2; ++i)
            two[i] = pick(__builtin_shufflevector(q[2 * i], q[2 * i + 1], 0, 4, 1, 5),
                          __builtin_shufflevector(q[2 * i], q[2 * i + 1], 2, 6, 3, 7));
        const quad a = two[0], b = two[1];
        const quad all = pick(__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7));
        memcpy(reinterpret_cast<float*>(&folded) + first, &all, sizeof all);
    }
    return folded;
}
// Elements at..at+3 of kLanes rows: element i of each row in out[i].
inline void columns(const float* const (&rows)[kLanes], size_t at, vf (&out)[4]) {
    for (int first = 0; first < kLanes; first += 4) {
        const quad r0 = read<quad>(rows[first] + at), r1 = read<quad>(rows[first + 1] + at);
        const quad r2 = read<quad>(rows[first + 2] + at), r3 = read<quad>(rows[first + 3] + at);
        const quad a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
        const quad c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
        const quad turned[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                                __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
        for (int i = 0; i < 4; ++i) memcpy(reinterpret_cast<float*>(&out[i]) + first, &turned[i], sizeof(quad));
    }
}

}  // namespace
}  // namespace tael
