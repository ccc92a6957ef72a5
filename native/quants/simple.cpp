// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set with TAEL_LEVEL. Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "simple_decode.h"
#include "simple_fp4.h"
#include "simple_ternary.h"
#include "simple_weighted.h"

namespace tael {

namespace {

template <class Plain, bool affine, bool fifth>
void quantize_either(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* weights) {
    if (weights == nullptr) quantize_plain<Plain>(source, out, rows, row_length, weights);
    else quantize_weighted<affine, fifth>(source, out, rows, row_length, weights);
}

}  // namespace

extern const BlockKernel TAEL_JOIN(quants_simple_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_simple_, TAEL_LEVEL)[] = {
    {"Q4_0", 32, 18, quantize_either<Symmetric<false>, false, false>, dequantize_blocks<DecodeQ4_0>},
    {"Q4_1", 32, 20, quantize_either<Affine<false>, true, false>, dequantize_blocks<DecodeQ4_1>},
    {"Q5_0", 32, 22, quantize_either<Symmetric<true>, false, true>, dequantize_blocks<DecodeQ5_0>},
    {"Q5_1", 32, 24, quantize_either<Affine<true>, true, true>, dequantize_blocks<DecodeQ5_1>},
    {"Q8_0", 32, 34, quantize_plain<EightBits>, dequantize_blocks<DecodeQ8_0>},
    {"Q1_0", 128, 18, quantize_plain<SignBits>, dequantize_blocks<DecodeQ1_0>},
    {"Q2_0", 64, 18, quantize_plain<TwoBits>, dequantize_blocks<DecodeQ2_0>},
    {"MXFP4", 32, 17, quantize_plain<Powers>, dequantize_mxfp4},
    {"NVFP4", 64, 36, quantize_plain<Sixteens>, dequantize_nvfp4},
    {"TQ1_0", 256, 54, quantize_plain<FiveInByte>, dequantize_blocks<DecodeTQ1_0>},
    {"TQ2_0", 256, 66, quantize_plain<FourInByte>, dequantize_blocks<DecodeTQ2_0>},
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
