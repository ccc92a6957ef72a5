// SPDX-License-Identifier: Apache-2.0
// Blocks of IQ1_S and IQ1_M back to float32.
#pragma once

#include "iq1_table.h"
#include "iq_lanes.h"

namespace tael {
namespace {

// Eight floats of an entry; `minus`: levels shifted down.
inline void iq1_expand(uint32_t number, uint32_t minus, float scale, float* out) {
#if defined(__AVX2__)
    const __m256 levels = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(kIq1Values[minus]));
    const __m256i by = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(kPointsIq1[number]), by);
    _mm256_storeu_ps(out, _mm256_permutevar_ps(_mm256_mul_ps(_mm256_set1_ps(scale), levels), code));
#else
    float values[4];
    write(values, scale * read<quad>(kIq1Values[minus]));
    const uint32_t code = kPointsIq1[number];
    for (int i = 0; i < 8; ++i) out[i] = values[code >> (2 * i) & 3];
#endif
}

void dequantize_iq1_s(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += 50) {
        const float d = from_half(read<uint16_t>(source));
        for (int i = 0; i < 8; ++i, out += 32) {
            const uint32_t high = read<uint16_t>(source + 34 + 2 * i), low = read<uint32_t>(source + 2 + 4 * i);
            const float scale = d * float(int32_t(2 * (high >> 12 & 7) + 1));
            for (int k = 0; k < 4; ++k) {
                const uint32_t number = (low >> (8 * k) & 255) | (high >> (3 * k) & 7) << 8;
                iq1_expand(number, high >> 15, scale, out + 8 * k);
            }
        }
    }
}

void dequantize_iq1_m(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += 56) {
        const uint64_t scales = read<uint64_t>(source + 48);
        const float d = from_half(uint16_t((scales >> 12 & 15) | (scales >> 24 & 0xF0) | (scales >> 36 & 0xF00) |
                                           (scales >> 48 & 0xF000)));
        for (int i = 0; i < 16; ++i, out += 16) {
            const uint32_t high = source[32 + i], low = read<uint16_t>(source + 2 * i);
            const float scale = d * float(int32_t(2 * (scales >> (16 * (i / 4) + 3 * (i % 4)) & 7) + 1));
            iq1_expand((low & 255) | (high & 7) << 8, high >> 3 & 1, scale, out);
            iq1_expand(low >> 8 | (high >> 4 & 7) << 8, high >> 7, scale, out + 8);
        }
    }
}

}  // namespace
}  // namespace tael
