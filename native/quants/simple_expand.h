// SPDX-License-Identifier: Apache-2.0
// From the bytes of a block to floats: 16 codes at a time, as signed bytes, then times a scale.
#pragma once

#include "simple_bytes.h"

namespace tael {
namespace {

constexpr int kTogether = 64;  // blocks whose scales are widened ahead of their use

typedef int8_t signed16 __attribute__((vector_size(16)));

// Bytes of 16-bit words shifted right: what comes from the other byte is masked away.
template <int by, int mask>
inline bytes16 shifted(bytes16 v) {
    typedef uint16_t words8 __attribute__((vector_size(16)));
    return bytes16(words8(v) >> by) & uint8_t(mask);
}

// Byte i is all ones where bit i is set, else zero.
inline bytes16 spread_bits(uint32_t bits) {
#if defined(__AVX2__)
    const __m128i which = _mm_set_epi64x(0x0101010101010101, 0);
    const bytes16 from = bytes16(_mm_shuffle_epi8(_mm_cvtsi32_si128(int32_t(bits)), which));
#else
    const uint64_t groups[2] = {0x0101010101010101u * (bits & 255), 0x0101010101010101u * (bits >> 8 & 255)};
    const bytes16 from = read<bytes16>(groups);
#endif
    const bytes16 own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    return bytes16((from & own) == own);
}

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

// A byte's leading trit, less one: each has a third of the byte's range.
inline signed16 leading_trit(bytes16 v) {
    const signed16 centred = signed16(v ^ 128);
    return ~((centred > 85 - 128) + (centred > 170 - 128));
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

// The float32 of `n` float16, which lie `stride` bytes apart.
inline void read_halves(const uint8_t* from, size_t stride, int n, float* out) {
    uint32_t bits[kTogether];
    for (int i = 0; i < n; ++i) bits[i] = *reinterpret_cast<const u16*>(from + i * stride);
    for (int i = 0; i < n; ++i) out[i] = as_float(widen_one<F16>(bits[i]));
}

}  // namespace
}  // namespace tael
