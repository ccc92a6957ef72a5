// SPDX-License-Identifier: Apache-2.0
// Blocks of IQ4_NL and IQ4_XS back to float32.
#pragma once

#include "iq4_levels.h"

namespace tael {
namespace {

// 32 floats of 16 bytes: first the low halves, then the high ones.
inline void iq4_expand(const uint8_t* codes, float scale, float* out) {
#if defined(__AVX2__)
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Levels)), low = _mm_set1_epi8(15);
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    const __m128i halves[2] = {_mm_and_si128(pairs, low), _mm_and_si128(_mm_srli_epi16(pairs, 4), low)};
    for (int i = 0; i < 2; ++i, out += 16) {
        const __m128i bytes = _mm_shuffle_epi8(levels, halves[i]);
#if defined(__AVX512F__)
        store(out, every(scale) * vf(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))));
#else
        const __m128i rest = _mm_unpackhi_epi64(bytes, bytes);
        store(out, every(scale) * vf(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
        store(out + 8, every(scale) * vf(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(rest))));
#endif
    }
#else
    float values[16];
    for (int i = 0; i < 16; ++i) values[i] = scale * float(kIq4Levels[i]);
    for (int i = 0; i < 16; ++i) {
        const uint8_t pair = codes[i];
        out[i] = values[pair & 15], out[i + 16] = values[pair >> 4];
    }
#endif
}

void dequantize_iq4_nl(const uint8_t* source, float* out, size_t blocks) {
    constexpr size_t together = 32;  // blocks whose scales are widened ahead of their use
    while (blocks != 0) {
        const size_t part = blocks < together ? blocks : together;
        uint16_t halves[together] = {};
        float scales[together];
        for (size_t i = 0; i < part; ++i) memcpy(&halves[i], source + 18 * i, 2);
        for (size_t i = 0; i < together; ++i) scales[i] = from_half(halves[i]);
        for (size_t i = 0; i < part; ++i, source += 18, out += 32) iq4_expand(source + 2, scales[i], out);
        blocks -= part;
    }
}

void dequantize_iq4_xs(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += 136) {
        const float d = from_half(read<uint16_t>(source));
        const uint32_t high = read<uint16_t>(source + 2), low = read<uint32_t>(source + 4);
        for (int i = 0; i < 8; ++i, out += 32) {
            const uint32_t level = (low >> (4 * i) & 15) | (high >> (2 * i) & 3) << 4;
            iq4_expand(source + 8 + 16 * i, d * float(int32_t(level) - 32), out);
        }
    }
}

}  // namespace
}  // namespace tael
