// SPDX-License-Identifier: Apache-2.0
// What a family of block types fills: one row per type of ggml, in a table per family and instruction set.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tael {

// Floats are aligned to 4 bytes, blocks to nothing; source and out are apart. Sources are finite.
struct BlockKernel {
    const char* name;       // ggml's, in capitals; null ends a table
    uint32_t block, bytes;  // elements and bytes of one block
    // Rows of row_length floats, a multiple of `block`. `weights`: row_length importances, the same for every row, finite
    // and not negative; null for none.
    void (*quantize)(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* weights);
    void (*dequantize)(const uint8_t* source, float* out, size_t blocks);
    bool needs_weights = false;
};

}  // namespace tael

#define TAEL_JOIN_(a, b) a##b
#define TAEL_JOIN(a, b) TAEL_JOIN_(a, b)
