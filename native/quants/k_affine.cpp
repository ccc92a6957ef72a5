// SPDX-License-Identifier: Apache-2.0
// Q2_K, Q4_K, Q5_K. Compiled once per instruction set with TAEL_LEVEL.
// Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "affine_quantize.h"

namespace tael {

extern const BlockKernel TAEL_JOIN(quants_k_affine_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_k_affine_, TAEL_LEVEL)[] = {
    {"Q2_K", kSuper, Q2K::bytes, quantize_affine<Q2K>, dequantize_affine<Q2K>},
    {"Q4_K", kSuper, Q4K::bytes, quantize_affine<Q4K>, dequantize_affine<Q4K>},
    {"Q5_K", kSuper, Q5K::bytes, quantize_affine<Q5K>, dequantize_affine<Q5K>},
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
