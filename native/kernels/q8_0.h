// SPDX-License-Identifier: Apache-2.0
// ggml's Q8_0: blocks of 32 elements, each a float16 scale d and 32 signed bytes q; the value is d * q.
// The scale is amax / 127 in float32 and its inverse is taken before it is rounded to float16; q rounds half away
// from zero. Source: quantize_row_q8_0_ref in ggml's quants (MIT); equal bytes are the test.
#pragma once

#include "cast.h"

namespace tael {
namespace {

constexpr size_t kQ8Block = 32, kQ8Bytes = 2 + kQ8Block;

int64_t q8_0_quantize(const void* source, void* out, size_t n_blocks) {
    const auto* from = static_cast<const f32*>(source);
    auto* to = static_cast<uint8_t*>(out);
    for (size_t block = 0; block < n_blocks; ++block, from += kQ8Block, to += kQ8Bytes) {
        const auto* bits = reinterpret_cast<const u32*>(from);
        uint32_t largest = 0;  // magnitudes order as their bits do
        for (size_t i = 0; i < kQ8Block; ++i) {
            const uint32_t magnitude = bits[i] & 0x7FFFFFFFu;
            largest = magnitude > largest ? magnitude : largest;
        }
        if (largest >= kInfinity) {
            size_t i = 0;
            while ((bits[i] & 0x7FFFFFFFu) < kInfinity) ++i;
            return int64_t(block * kQ8Block + i);
        }
        const float scale = as_float(largest) / 127.0f;
        // Up to 2^-128 the inverse is infinite and the stored scale is zero: the block is zeros.
        const float division = 1.0f / scale;
        const float inverse = as_bits(division) < kInfinity ? division : 0.0f;
        uint32_t ignored = 0;
        *reinterpret_cast<u16*>(to) = uint16_t(narrow_one<F16, false>(as_bits(scale), ignored));
        for (size_t i = 0; i < kQ8Block; ++i) {
            const float value = from[i] * inverse;
            const int32_t whole = int32_t(value);
            const float rest = value - float(whole);  // exact
            to[2 + i] = uint8_t(whole + (rest >= 0.5f) - (rest <= -0.5f));
        }
    }
    return -1;
}

void q8_0_dequantize(const void* source, void* out, size_t n_blocks) {
    const auto* from = static_cast<const uint8_t*>(source);
    auto* to = static_cast<f32*>(out);
    for (size_t block = 0; block < n_blocks; ++block, from += kQ8Bytes, to += kQ8Block) {
        const float scale = as_float(widen_one<F16>(*reinterpret_cast<const u16*>(from)));
        const auto* q = reinterpret_cast<const int8_t*>(from + 2);
        for (size_t i = 0; i < kQ8Block; ++i) to[i] = scale * float(q[i]);
    }
}

}  // namespace
}  // namespace tael
