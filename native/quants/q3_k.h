// SPDX-License-Identifier: Apache-2.0
// Q3_K: 256 elements in 110 bytes: high bits [32] | low two bits [64] | sixteen 6-bit scales [12] | float16 d.
// x = d * (scale - 32) * (code - 4).
#pragma once

#include "symmetric_refine.h"
#include "symmetric_search.h"

namespace tael {
namespace {

constexpr int kQ3Bytes = 110, kQ3Low = 32, kQ3Scales = 96, kQ3D = 108;

inline void pack_q3(const int8_t* code, uint8_t* out) {
    const uint8_t* q = reinterpret_cast<const uint8_t*>(code);
    for (int l = 0; l < 32; ++l) {
        uint8_t high = 0;
#pragma GCC unroll 8
        for (int part = 0; part < 8; ++part) high |= uint8_t((q[32 * part + l] >> 2) << part);
        out[l] = high;
    }
    for (int half = 0; half < 2; ++half, q += 128)
        for (int l = 0; l < 32; ++l)
            out[kQ3Low + 32 * half + l] = uint8_t((q[l] & 3) | (q[l + 32] & 3) << 2 | (q[l + 64] & 3) << 4 |
                                                  (q[l + 96] & 3) << 6);
}

// Six bits each: low nibbles of scales 0-7 and 8-15 side by side, then the high pairs of bits, four scales in a byte.
inline void pack_q3_scales(const uint8_t* scale, uint8_t* out) {
    for (int j = 0; j < 8; ++j) out[j] = uint8_t((scale[j] & 15) | scale[j + 8] << 4);
    for (int j = 0; j < 4; ++j)
        out[8 + j] = uint8_t(scale[j] >> 4 | scale[j + 4] >> 4 << 2 | scale[j + 8] >> 4 << 4 | scale[j + 12] >> 4 << 6);
}

inline void quantize_q3_block(const float* source, uint8_t* out) {
    Refined<4> fits[kSubs / kLanes];
    vi zeros[kSubs / kLanes];
    float scales[kSubs], steps[kSubs];
    for (int g = 0; g < kSubs / kLanes; ++g) {
        vf x[kSub];
        turn(source + g * kLanes * kSub, kSub, x);
        store(scales + g * kLanes, refine<4>(x, fits[g], zeros[g]));
    }
    float largest = 0, size_of_it = 0;
    for (int s = 0; s < kSubs; ++s) {
        const float size = __builtin_fabsf(scales[s]);
        if (size > size_of_it) size_of_it = size, largest = scales[s];
    }
    uint8_t packed[kSubs] = {};
    float d = 0;
    if (largest != 0.0f) {
        const float inverse = -32.0f / largest;
        for (int s = 0; s < kSubs; ++s) {
            const int32_t rounded = nearest(inverse * scales[s]);
            packed[s] = uint8_t((rounded < 31 ? rounded > -32 ? rounded : -32 : 31) + 32);
        }
        d = 1 / inverse;
    }
    put_f16(out + kQ3D, d);
    d = get_f16(out + kQ3D);
    pack_q3_scales(packed, out + kQ3Scales);
    for (int s = 0; s < kSubs; ++s) steps[s] = d * float(packed[s] - 32);
    alignas(64) int8_t code[kSuper];
    codes_by_scales<4>(source, steps, code);
    for (int s = 0; s < kSubs; ++s) {  // a scale rounded to zero: the codes of the search stay
        if (steps[s] != 0.0f) continue;
        const int g = s / kLanes, lane = s % kLanes;
        for (int i = 0; i < kSub; ++i)
            code[s * kSub + i] = zeros[g][lane] ? int8_t(0) : int8_t(fits[g].code[i][lane] + 4.0f);
    }
    pack_q3(code, out);
}

// Twice the mean square of each of kLanes blocks, summed in order.
inline vf twice_mean_square(const float* source, size_t blocks) {
    vf sum = {};
    if (blocks >= size_t(kLanes)) {
        for (int at = 0; at < kSuper; at += 4) {
            vf x[4];
            turn_four(source + at, kSuper, x);
            for (int i = 0; i < 4; ++i) sum += x[i] * x[i];
        }
    } else {
        for (size_t b = 0; b < blocks; ++b) {
            float own = 0;
            for (int i = 0; i < kSuper; ++i) own += source[b * kSuper + i] * source[b * kSuper + i];
            sum[b] = own;
        }
    }
    return 2 * sum / float(kSuper);
}

// What the search found for the sub-blocks of kLanes blocks.
struct Q3Fits {
    float scales[kLanes][kSubs], weights[kLanes][kSubs], inverses[kLanes][kSubs];
    int32_t zeros[kLanes][kSubs];
};

inline void fit_q3_block(const float* source, const float* weights, float sigma2, Q3Fits& fits, size_t b) {
    for (int s = 0; s < kSubs; s += kLanes) {
        vf x[kSub], w[kSub], wx[kSub], total = {};
        turn(source + s * kSub, kSub, x);
        turn(weights + s * kSub, kSub, w);
        for (int i = 0; i < kSub; ++i) {
            w[i] *= square_root(spread(sigma2) + x[i] * x[i]);
            wx[i] = w[i] * x[i];
            total += w[i];
        }
        const Fit fit = search<4>(x, w, wx);
        store(fits.scales[b] + s, fit.scale);
        store(fits.inverses[b] + s, fit.inverse);
        store(fits.weights[b] + s, total);
        memcpy(fits.zeros[b] + s, &fit.zero, sizeof fit.zero);
    }
}

// Blocks in lanes: the same search again, over the scales of each block (not finite where squares overflowed).
inline void finish_q3_blocks(const float* source, uint8_t* out, size_t blocks, const Q3Fits& fits) {
    vf x[kSub], w[kSub], wx[kSub];
    turn(fits.scales[0], kSubs, x);
    turn(fits.weights[0], kSubs, w);
    for (int i = 0; i < kSub; ++i) wx[i] = w[i] * x[i];
    const Fit fit = search<32, true>(x, w, wx);
    vi packed[kSub];
    for (int i = 0; i < kSub; ++i) packed[i] = (held<32>(nearest(fit.inverse * x[i])) + 32) & ~fit.zero;
    for (size_t b = 0; b < blocks; ++b, source += kSuper, out += kQ3Bytes) {
        put_f16(out + kQ3D, fit.scale[b]);
        const float d = get_f16(out + kQ3D);
        uint8_t scales[kSubs];
        float steps[kSubs];
        for (int s = 0; s < kSubs; ++s) {
            scales[s] = uint8_t(packed[s][b]);
            steps[s] = d * float(scales[s] - 32);
        }
        pack_q3_scales(scales, out + kQ3Scales);
        alignas(64) int8_t code[kSuper];
        codes_by_scales<4>(source, steps, code);
        for (int s = 0; s < kSubs; ++s)  // a scale rounded to zero: the codes of the search stay
            if (steps[s] == 0.0f)
                winning_codes<4>(fits.inverses[b][s], fits.zeros[b][s], source + s * kSub, code + s * kSub);
        pack_q3(code, out);
    }
}

void quantize_q3_weighted(const float* source, uint8_t* out, size_t blocks, size_t row_blocks, const float* weights) {
    size_t in_row = 0;
    while (blocks != 0) {
        const size_t now = blocks < size_t(kLanes) ? blocks : size_t(kLanes);
        Q3Fits fits;
        if (now < size_t(kLanes)) memset(&fits, 0, sizeof fits);
        const vf sigma2 = twice_mean_square(source, now);
        for (size_t b = 0; b < now; ++b) {
            fit_q3_block(source + b * kSuper, weights + in_row * kSuper, sigma2[b], fits, b);
            in_row = in_row + 1 == row_blocks ? 0 : in_row + 1;
        }
        finish_q3_blocks(source, out, now, fits);
        source += now * kSuper, out += now * kQ3Bytes, blocks -= now;
    }
}

void quantize_q3(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* weights) {
    const size_t row_blocks = row_length / kSuper, blocks = rows * row_blocks;
    if (weights) return quantize_q3_weighted(source, out, blocks, row_blocks, weights);
    for (size_t b = 0; b < blocks; ++b) quantize_q3_block(source + b * kSuper, out + b * kQ3Bytes);
}

void dequantize_q3(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += kQ3Bytes, out += kSuper) {
        alignas(64) int8_t code[kSuper];
        for (int part = 0; part < 8; ++part) {
            const uint8_t* low = source + kQ3Low + part / 4 * 32;
            for (int l = 0; l < 32; ++l)
                code[32 * part + l] = int8_t(((low[l] >> part % 4 * 2 & 3) | (source[l] >> part & 1) << 2) - 4);
        }
        const uint8_t* scales = source + kQ3Scales;
        const float d = get_f16(source + kQ3D);
        for (int s = 0; s < kSubs; ++s) {
            const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
            const int scale = low | (scales[8 + s % 4] >> s / 4 * 2 & 3) << 4;
            put_products(d * float(scale - 32), code + s * kSub, out + s * kSub);
        }
    }
}

}  // namespace
}  // namespace tael
