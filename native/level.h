// SPDX-License-Identifier: Apache-2.0
// The table of kernels that every instruction set fills, and the names of the levels.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "quants/block_kernel.h"

namespace tael {

// Over finite values, save for the counts. Eight interleaved double accumulators merged in a fixed order make the
// sums the same on every level.
struct Stats {
    uint64_t count, nan, inf, zero;
    double min, max, sum, sum_squares;
};

// How far `b` is from `a`; sums in the order of Stats.
struct Errors {
    double squared_error, squares_a, squares_b, products, max_error;
};

// Buffers may have any alignment and must not overlap. A narrowing cast returns how many finite inputs overflowed.
using Narrow = uint64_t (*)(const void* source, void* out, size_t n, bool saturate);
using Widen = void (*)(const void* source, void* out, size_t n);
using Crc = uint32_t (*)(uint32_t crc, const void* data, size_t n_bytes);

struct Kernels {
    const char* name;
    Crc crc32, crc32c;
    Narrow f32_to_bf16, f32_to_f16, f32_to_f8_e4m3, f32_to_f8_e5m2, f64_to_f32;
    Widen bf16_to_f32, f16_to_f32, f8_e4m3_to_f32, f8_e5m2_to_f32, f64_to_f32_odd;
    int64_t (*first_difference)(const void* a, const void* b, size_t n_bytes);
    uint64_t (*count_differences)(const void* a, const void* b, size_t n_items, size_t itemsize);
    Stats (*stats_f32)(const void* source, size_t n);
    Errors (*errors_f32)(const void* a, const void* b, size_t n);
    int64_t (*first_nonfinite)(const void* source, size_t n);  // index, or -1
    const BlockKernel* const* families;                        // tables of block types; null ends them
};

// Each is defined by one compilation of level.cpp; which exist depends on the processor family.
extern const Kernels kernels_baseline, kernels_avx2, kernels_avx512, kernels_neon;

}  // namespace tael
