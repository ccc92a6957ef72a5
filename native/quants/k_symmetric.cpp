// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set with TAEL_LEVEL. Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "q3_k.h"
#include "q6_k.h"

namespace tael {

extern const BlockKernel TAEL_JOIN(quants_k_symmetric_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_k_symmetric_, TAEL_LEVEL)[] = {
    {"Q3_K", kSuper, kQ3Bytes, quantize_q3, dequantize_q3},
    {"Q6_K", kSuper, kQ6Bytes, quantize_q6, dequantize_q6},
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
