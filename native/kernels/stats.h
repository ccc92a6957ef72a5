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

// Both are finite. Padding adds zeros to every sum.
Errors errors_f32(const void* a, const void* b, size_t n) {
    const auto* left = static_cast<const uint8_t*>(a);
    const auto* right = static_cast<const uint8_t*>(b);
    f64x8 errors = {}, squares_a = {}, squares_b = {}, products = {}, largest = {};
    for (size_t i = 0; i < n; i += 8) {
        f32x8 x = {}, y = {};
        const size_t size = n - i < 8 ? 4 * (n - i) : 32;
        memcpy(&x, left + 4 * i, size);
        memcpy(&y, right + 4 * i, size);
        const f64x8 wide_x = __builtin_convertvector(x, f64x8), wide_y = __builtin_convertvector(y, f64x8);
        const f64x8 difference = wide_x - wide_y, negated = wide_y - wide_x;
        errors += difference * difference;
        squares_a += wide_x * wide_x;
        squares_b += wide_y * wide_y;
        products += wide_x * wide_y;
        const f64x8 distance = difference > negated ? difference : negated;
        largest = distance > largest ? distance : largest;
    }
    Errors result = {};
    for (int lane = 0; lane < 8; ++lane) {
        result.squared_error += errors[lane];
        result.squares_a += squares_a[lane];
        result.squares_b += squares_b[lane];
        result.products += products[lane];
        result.max_error = largest[lane] > result.max_error ? largest[lane] : result.max_error;
    }
    return result;
}

int64_t first_nonfinite(const void* source, size_t n) {
    const auto* bits = static_cast<const u32*>(source);
    for (size_t start = 0; start < n; start += 4096) {
        const size_t end = n - start < 4096 ? n : start + 4096;
        uint32_t largest = 0;  // magnitudes order as their bits do
        for (size_t i = start; i < end; ++i) {
            const uint32_t magnitude = bits[i] & 0x7FFFFFFFu;
            largest = magnitude > largest ? magnitude : largest;
        }
        if (largest < 0x7F800000u) continue;
        for (size_t i = start; i < end; ++i)
            if ((bits[i] & 0x7FFFFFFFu) >= 0x7F800000u) return int64_t(i);
    }
    return -1;
}

}  // namespace
}  // namespace tael
