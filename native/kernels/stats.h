// SPDX-License-Identifier: Apache-2.0
// One streaming pass over float32 for `inspect --stats`. Element i always goes to lane i mod 8, whatever the width of
// the registers, and lanes merge in order: the sums have the same bits on every level.
#pragma once

#include "../level.h"
#include "memory.h"

namespace tael {
namespace {

typedef float f32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

inline u32x8 choose(u32x8 mask, u32x8 yes, u32x8 no) { return (mask & yes) | (~mask & no); }

Stats stats_f32(const void* source, size_t n) {
    const auto* data = static_cast<const uint8_t*>(source);
    const uint32_t inf = 0x7F800000u;
    Stats result = {n, 0, 0, 0, __builtin_inf(), -__builtin_inf(), 0.0, 0.0};
    f64x8 sum = {}, squares = {};
    u32x8 low = {}, high = {};
    low += inf, high += inf | 0x80000000u;
    for (size_t done = 0; done < n;) {
        const size_t part = n - done < (1u << 24) ? n - done : (1u << 24);  // the counts below hold 32 bits
        u32x8 nans = {}, infs = {}, zeros = {};
        for (size_t i = 0; i < part; i += 8) {
            u32x8 bits;
            const size_t left = part - i;
            u32x8 padding = {};
            if (__builtin_expect(left >= 8, 1)) {
                memcpy(&bits, data + 4 * (done + i), 32);
            } else {  // a padded lane looks like a NaN and is not counted as one
                bits = u32x8{} + 0x7FC00000u;
                memcpy(&bits, data + 4 * (done + i), 4 * left);
                for (size_t lane = left; lane < 8; ++lane) padding[lane] = 1;
            }
            const u32x8 magnitude = bits & 0x7FFFFFFFu;
            const u32x8 finite = u32x8(magnitude < inf);
            nans -= u32x8(magnitude > inf) + padding;
            infs -= u32x8(magnitude == inf);
            zeros -= u32x8(magnitude == 0u);
            const u32x8 value = bits & finite;
            const u32x8 for_low = choose(finite, bits, u32x8{} + inf);
            const u32x8 for_high = choose(finite, bits, u32x8{} + (inf | 0x80000000u));
            low = choose(u32x8(f32x8(for_low) < f32x8(low)), for_low, low);
            high = choose(u32x8(f32x8(for_high) > f32x8(high)), for_high, high);
            const f64x8 wide = __builtin_convertvector(f32x8(value), f64x8);
            sum += wide;
            squares += wide * wide;
        }
        for (int lane = 0; lane < 8; ++lane) {
            result.nan += nans[lane];
            result.inf += infs[lane];
            result.zero += zeros[lane];
        }
        done += part;
    }
    for (int lane = 0; lane < 8; ++lane) {
        const double lane_low = as_float(low[lane]), lane_high = as_float(high[lane]);
        result.min = lane_low < result.min ? lane_low : result.min;
        result.max = lane_high > result.max ? lane_high : result.max;
        result.sum += sum[lane];
        result.sum_squares += squares[lane];
    }
    return result;
}

}  // namespace
}  // namespace tael
