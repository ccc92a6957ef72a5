// SPDX-License-Identifier: Apache-2.0
// Copies a strided array of items into contiguous, row-major memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace tael {

constexpr int kMaxDimensions = 64;

// Strides are in bytes and may be zero or negative; itemsize is 1, 2, 4, 8 or 16; `source` is the first item.
void gather_strided(const void* source, void* out, int n_dimensions, const int64_t* shape, const int64_t* strides,
                    size_t itemsize);

}  // namespace tael
