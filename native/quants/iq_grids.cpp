// SPDX-License-Identifier: Apache-2.0
// The types whose values lie on a codebook of two or three bits. Compiled once per instruction set with TAEL_LEVEL.
// Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "grid_decode.h"
#include "grid_quantize.h"

namespace tael {

extern const BlockKernel TAEL_JOIN(quants_iq_grids_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_iq_grids_, TAEL_LEVEL)[] = {
    {"IQ2_XXS", 256, 66, quantize_grid<Iq2xxs>, dequantize_iq2xxs, true},
    {"IQ2_XS", 256, 74, quantize_grid<Iq2xs>, dequantize_iq2xs, true},
    {"IQ2_S", 256, 82, quantize_grid<Iq2s>, dequantize_iq2s},
    {"IQ3_XXS", 256, 98, quantize_grid<Iq3xxs>, dequantize_iq3xxs},
    {"IQ3_S", 256, 110, quantize_grid<Iq3s>, dequantize_iq3s},
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
