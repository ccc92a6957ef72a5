// SPDX-License-Identifier: Apache-2.0
// From the bytes of a block to floats: 16 codes at a time, as signed bytes, then times a scale.
#pragma once

#include "simple_bytes.h"

namespace tael {
namespace {

constexpr int kTogether = 64;  // blocks whose scales are widened ahead of their use

typedef int8_t signed16 __attribute__((vector_size(16)));
typedef int8_t signed32 __attribute__((vector_size(32)));

// Bytes of 16-bit words shifted right: what comes from the other byte is masked away.
template <int by, int mask>
inline bytes16 shifted(bytes16 v) {
    typedef uint16_t words8 __attribute__((vector_size(16)));
    return bytes16(words8(v) >> by) & uint8_t(mask);
}

#if !defined(__AVX2__)
// Byte i is all ones where bit i is set, else zero.
inline bytes16 spread_bits(uint32_t bits) {
    const uint64_t groups[2] = {0x0101010101010101u * (bits & 255), 0x0101010101010101u * (bits >> 8 & 255)};
    const bytes16 own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return bytes16((read<bytes16>(groups) & own) == own);
}
#endif

// Codes of five bits: four of each in a half of one of 16 bytes; `adds`: what a set fifth bit comes to.
struct FiveBits {
    bytes16 first, second;
    FiveBits(const uint8_t* nibbles, uint32_t fifth, uint8_t adds) {
#if defined(__AVX2__)
        const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(nibbles)));
        const __m256i down = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
        const __m256i four = _mm256_and_si256(down, _mm256_set1_epi8(15));
        const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const __m256i own = _mm256_set1_epi64x(int64_t(0x8040201008040201));
        const __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(fifth)), which), own);
        const __m256i more = _mm256_and_si256(_mm256_cmpeq_epi8(bits, own), _mm256_set1_epi8(int8_t(adds)));
        const bytes32 codes = bytes32(_mm256_or_si256(four, more));
        first = low_half(codes), second = high_half(codes);
#else
        const bytes16 both = read<bytes16>(nibbles);
        first = (both & 15) | (spread_bits(fifth) & adds);
        second = shifted<4, 15>(both) | (spread_bits(fifth >> 16) & adds);
#endif
    }
};

// Twice the value of a code of one sign, two exponent and one mantissa bits (ggml's kvalues_fp4; OCP's E2M1).
inline signed16 fp4_values(bytes16 codes) {
#if defined(__AVX2__)
    const __m128i values = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return signed16(_mm_shuffle_epi8(values, (__m128i)codes));
#else
    const signed16 size = signed16(codes & 7), minus = signed16(codes) > 7;
    // 0, 1, 2, 3, 4, 6, 8, 12: the size, from 5 on as much again as is over 4, and two more for the last.
    const signed16 value = size + ((size > 4) & (size - 4)) + ((size > 6) & 2);
    return (value ^ minus) - minus;
#endif
}

// A byte's leading trit, less one: each has a third of the byte's range. `centred`: the byte less 128, which stays so
// when both are multiplied by three.
inline signed16 leading_trit(bytes16 centred) {
    const signed16 value = signed16(centred);
    return ~((value > 85 - 128) + (value > 170 - 128));
}
inline signed32 leading_trit(bytes32 centred) {
    const signed32 value = signed32(centred);
    return ~((value > 85 - 128) + (value > 170 - 128));
}

struct Scaled {  // value = code * scale
    vf scale;
    explicit Scaled(float s) : scale(every(s)) {}
    vf operator()(vf code) const { return code * scale; }
};
struct Shifted {  // value = code * scale + offset
    vf scale, offset;
    Shifted(float s, float o) : scale(every(s)), offset(every(o)) {}
    vf operator()(vf code) const { return code * scale + offset; }
};

template <class Value>
inline void expand(signed16 codes, Value value, float* out) {
#if defined(__AVX512F__)
    store(out, value(vf(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)codes)))));
#elif defined(__AVX2__)
    const __m128i first = (__m128i)codes, second = _mm_unpackhi_epi64(first, first);
    store(out, value(vf(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(first)))));
    store(out + 8, value(vf(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(second)))));
#elif defined(__SSE2__)
    const __m128i v = (__m128i)codes, low = _mm_unpacklo_epi8(v, v), high = _mm_unpackhi_epi8(v, v);
    store(out, value(vf(_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(low, low), 24)))));
    store(out + 4, value(vf(_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpackhi_epi16(low, low), 24)))));
    store(out + 8, value(vf(_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(high, high), 24)))));
    store(out + 12, value(vf(_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpackhi_epi16(high, high), 24)))));
#else
    typedef int32_t ints16 __attribute__((vector_size(64)));
    const ints16 wide = __builtin_convertvector(codes, ints16);
    vi parts[16 / kLanes];
    memcpy(parts, &wide, sizeof parts);
    for (int i = 0; i < 16 / kLanes; ++i) store(out + i * kLanes, value(to_float(parts[i])));
#endif
}

#if defined(__AVX2__)
// Two-bit codes chosen from a table of four values: of each lane the low two bits count.
struct FourValues {
#if defined(__AVX512F__)
    __m512 table;
    explicit FourValues(float scale)
        : table(_mm512_mul_ps(_mm512_broadcast_f32x4(_mm_setr_ps(-1.0f, 0.0f, 1.0f, 2.0f)), _mm512_set1_ps(scale))) {}
    void put(vi codes, float* out) const { store(out, vf(_mm512_permutevar_ps(table, (__m512i)codes))); }
#else
    __m256 table;
    explicit FourValues(float scale)
        : table(_mm256_mul_ps(_mm256_setr_ps(-1, 0, 1, 2, -1, 0, 1, 2), _mm256_set1_ps(scale))) {}
    void put(vi codes, float* out) const { store(out, vf(_mm256_permutevar_ps(table, (__m256i)codes))); }
#endif
};

// kLanes bytes as integers.
inline vi widen_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return vi(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    return vi(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
}
#endif

#if defined(__AVX512F__)
// 16 bytes, each two codes of four bits: the low ones first. A table holds every value.
inline void expand_nibbles(const uint8_t* from, __m512 table, float* out) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    store(out, vf(_mm512_permutexvar_ps(both, table)));
    store(out + 16, vf(_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table)));
}
inline __m512 counting_from(float first) {
    const __m512 counts = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_ps(counts, _mm512_set1_ps(first));
}
inline __m512 doubled_fp4() { return _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12); }
#endif

// As widen_one<F16> of cast.h, kLanes at once: infinities and NaN get the distance of the exponents twice.
inline vf widen_halves(vu halves) {
    const vu code = halves & 0x7FFFu, size = code << 13;
    const vu twice = vu(vi(code) > splat_i(0x7BFF)) & (112u << 23);
    const vu subnormal = vu(vf(size + (113u << 23)) - every(0x1p-14f)), normal = size + (112u << 23) + twice;
    const vu small = vu(vi(code) < splat_i(0x400));
    return vf((subnormal & small) | (normal & ~small) | (halves & 0x8000u) << 16);
}

template <bool two>
inline uint32_t load_word(const uint8_t* from) {
    if constexpr (two) return *reinterpret_cast<const u32*>(from);
    return *reinterpret_cast<const u16*>(from);
}

// Of kLanes blocks. Left to itself GCC builds such vectors in memory, from where they load late.
template <bool two>
inline vu load_words(const uint8_t* from, size_t stride) {
#if defined(__AVX2__)
    __m128i fours[kLanes / 4];
    for (__m128i& four : fours) {
        __m128i pairs[2];
        for (__m128i& pair : pairs) {
            pair = _mm_cvtsi32_si128(int32_t(load_word<two>(from)));
            pair = _mm_insert_epi32(pair, int32_t(load_word<two>(from + stride)), 1);
            from += 2 * stride;
        }
        four = _mm_unpacklo_epi64(pairs[0], pairs[1]);
    }
    const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(fours[0]), fours[1], 1);
#if defined(__AVX512F__)
    const __m256i second = _mm256_inserti128_si256(_mm256_castsi128_si256(fours[2]), fours[3], 1);
    return vu(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
#else
    return vu(first);
#endif
#else
    vu words;
    for (int lane = 0; lane < kLanes; ++lane) words[lane] = load_word<two>(from + size_t(lane) * stride);
    return words;
#endif
}

// The scales of `n` blocks, float16 which lie `stride` bytes apart; and the offsets, each behind its scale.
template <bool offsets_too>
inline void read_halves(const uint8_t* from, size_t stride, int n, float* scales, float* offsets) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes, from += kLanes * stride) {
        const vu bits = load_words<offsets_too>(from, stride);
        store(scales + i, widen_halves(bits & 0xFFFFu));
        if constexpr (offsets_too) store(offsets + i, widen_halves(bits >> 16));
    }
    for (; i < n; ++i, from += stride) {
        const uint32_t bits = load_word<offsets_too>(from);
        scales[i] = as_float(widen_one<F16>(bits & 0xFFFFu));
        if constexpr (offsets_too) offsets[i] = as_float(widen_one<F16>(bits >> 16));
    }
}

}  // namespace
}  // namespace tael
