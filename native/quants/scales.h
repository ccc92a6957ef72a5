// SPDX-License-Identifier: Apache-2.0
// Where the scales lie in a block of each type, to prove that all of them are finite.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace tael {

struct ScaleLayout {
    const char* name;
    int first, second;  // bytes at which float16 scales begin; -1: none
};

constexpr ScaleLayout kScales[] = {
    {"Q4_0", 0, -1},    {"Q4_1", 0, 2},    {"Q5_0", 0, -1},    {"Q5_1", 0, 2},    {"Q8_0", 0, -1},   {"Q2_K", 80, 82},
    {"Q3_K", 108, -1},  {"Q4_K", 0, 2},    {"Q5_K", 0, 2},     {"Q6_K", 208, -1}, {"IQ1_S", 0, -1},  {"IQ2_XXS", 0, -1},
    {"IQ2_XS", 0, -1},  {"IQ2_S", 0, -1},  {"IQ3_XXS", 0, -1}, {"IQ3_S", 0, -1},  {"IQ4_NL", 0, -1}, {"IQ4_XS", 0, -1},
    {"TQ1_0", 52, -1},  {"TQ2_0", 64, -1}, {"Q1_0", 0, -1},    {"Q2_0", 0, -1},
};

inline bool infinite_f16(const uint8_t* at) { return (at[1] & 0x7C) == 0x7C; }

// The first of `n` blocks whose scale is infinite or NaN, or -1.
inline int64_t first_bad_scale(const char* type, const uint8_t* blocks, size_t n, size_t bytes) {
    if (strcmp(type, "IQ1_M") == 0) {  // a float16 in the high nibbles of four 16-bit scales
        for (size_t i = 0; i < n; ++i) {
            const uint8_t* scales = blocks + i * bytes + 48;
            if ((scales[7] >> 4 & 7) == 7 && (scales[5] >> 4 & 0xC) == 0xC) return int64_t(i);
        }
        return -1;
    }
    if (strcmp(type, "MXFP4") == 0) {
        for (size_t i = 0; i < n; ++i)
            if (blocks[i * bytes] == 0xFF) return int64_t(i);
        return -1;
    }
    for (const ScaleLayout& layout : kScales) {
        if (strcmp(type, layout.name) != 0) continue;
        for (size_t i = 0; i < n; ++i) {
            const uint8_t* block = blocks + i * bytes;
            if (infinite_f16(block + layout.first) || (layout.second >= 0 && infinite_f16(block + layout.second)))
                return int64_t(i);
        }
    }
    return -1;
}

}  // namespace tael
