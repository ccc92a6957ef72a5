// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set with TAEL_LEVEL. Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "iq4_decode.h"
#include "iq4_quantize.h"

namespace tael {

extern const BlockKernel TAEL_JOIN(quants_iq4_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_iq4_, TAEL_LEVEL)[] = {
    {"IQ4_NL", 32, 18, quantize_iq4_nl, dequantize_iq4_nl},
    {"IQ4_XS", 256, 136, quantize_iq4_xs, dequantize_iq4_xs},
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
