// SPDX-License-Identifier: Apache-2.0
// Q6_K: 256 elements in 210 bytes: low four bits [128] | high two bits [64] | sixteen int8 scales | float16 d.
// x = d * scale * (code - 32).
#pragma once

#include "symmetric_search.h"

namespace tael {
namespace {

constexpr int kQ6Bytes = 210, kQ6High = 128, kQ6Scales = 192, kQ6D = 208;

inline void pack_q6(const int8_t* code, uint8_t* out) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t* q = reinterpret_cast<const uint8_t*>(code) + 128 * half;
        uint8_t* low = out + 64 * half;
        uint8_t* high = out + kQ6High + 32 * half;
        for (int l = 0; l < 64; ++l) low[l] = uint8_t((q[l] & 15) | q[l + 64] << 4);
        for (int l = 0; l < 32; ++l)
            high[l] = uint8_t(q[l] >> 4 | (q[l + 32] >> 4) << 2 | (q[l + 64] >> 4) << 4 | (q[l + 96] >> 4) << 6);
    }
}

void quantize_q6_block(const float* source, uint8_t* out, const float* weights) {
    float scales[kSubs], inverses[kSubs];
    int32_t zeros[kSubs];
    for (int group = 0; group < kSubs / kLanes; ++group) {
        vf x[kSub], w[kSub], wx[kSub];
        turn(source + group * kLanes * kSub, kSub, x);
        if (weights) turn(weights + group * kLanes * kSub, kSub, w);
        for (int i = 0; i < kSub; ++i) {
            if (!weights) w[i] = x[i] * x[i];
            wx[i] = w[i] * x[i];
        }
        const Fit fit = search<32>(x, w, wx);
        store(scales + group * kLanes, fit.scale);
        store(inverses + group * kLanes, fit.inverse);
        memcpy(zeros + group * kLanes, &fit.zero, sizeof fit.zero);
    }
    float largest = 0, magnitude_of_it = 0;
    for (int s = 0; s < kSubs; ++s) {
        const float size = __builtin_fabsf(scales[s]);
        if (size > magnitude_of_it) magnitude_of_it = size, largest = scales[s];
    }
    if (magnitude_of_it < kTiniest) {
        memset(out, 0, kQ6Bytes);
        return;
    }
    const float inverse = -128.0f / largest;
    put_f16(out + kQ6D, 1 / inverse);
    const float d = get_f16(out + kQ6D);
    float steps[kSubs];
    for (int s = 0; s < kSubs; ++s) {
        const int32_t rounded = nearest(inverse * scales[s]);
        const int8_t scale = int8_t(rounded < 127 ? rounded : 127);
        out[kQ6Scales + s] = uint8_t(scale);
        steps[s] = d * float(scale);
    }
    alignas(64) int8_t code[kSuper];
    codes_by_scales<32>(source, steps, code);
    for (int s = 0; s < kSubs; ++s)  // a scale rounded to zero: the codes of the search stay
        if (steps[s] == 0.0f) winning_codes<32>(inverses[s], zeros[s], source + s * kSub, code + s * kSub);
    pack_q6(code, out);
}

void quantize_q6(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* weights) {
    for (size_t row = 0; row < rows; ++row)
        for (size_t at = 0; at < row_length; at += kSuper, source += kSuper, out += kQ6Bytes)
            quantize_q6_block(source, out, weights ? weights + at : nullptr);
}

void dequantize_q6(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += kQ6Bytes, out += kSuper) {
        alignas(64) int8_t code[kSuper];
        for (int half = 0; half < 2; ++half) {
            const uint8_t* low = source + 64 * half;
            const uint8_t* high = source + kQ6High + 32 * half;
            int8_t* q = code + 128 * half;
            for (int l = 0; l < 32; ++l) {
                q[l] = int8_t(((low[l] & 15) | (high[l] & 3) << 4) - 32);
                q[l + 32] = int8_t(((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4) - 32);
                q[l + 64] = int8_t((low[l] >> 4 | (high[l] >> 4 & 3) << 4) - 32);
                q[l + 96] = int8_t((low[l + 32] >> 4 | (high[l] >> 6) << 4) - 32);
            }
        }
        const float d = get_f16(source + kQ6D);
        for (int s = 0; s < kSubs; ++s) {
            const float scale = d * float(int8_t(source[kQ6Scales + s]));
            put_products(scale, code + s * kSub, out + s * kSub);
        }
    }
}

}  // namespace
}  // namespace tael
