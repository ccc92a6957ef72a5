// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set with TAEL_LEVEL. Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "iq1_decode.h"
#include "iq1_quantize.h"

namespace tael {

extern const BlockKernel TAEL_JOIN(quants_iq1_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_iq1_, TAEL_LEVEL)[] = {
    {"IQ1_S", 256, 50, quantize_iq1_s, dequantize_iq1_s, true},
    {"IQ1_M", 256, 56, quantize_iq1_m, dequantize_iq1_m, true},
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
