// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set with TAEL_LEVEL = baseline, avx2, avx512 or neon.
// Only C headers and static functions below: an inline function of the C++ library compiled here for AVX-512 could
// be the copy that the linker keeps for everyone.
#include "level.h"

#include "kernels/memory.h"
#include "kernels/crc.h"
#include "kernels/cast.h"
#include "kernels/compare.h"
#include "kernels/stats.h"

#define TAEL_TEXT_(a) #a
#define TAEL_TEXT(a) TAEL_TEXT_(a)

namespace tael {

#define TAEL_FAMILY(name) TAEL_JOIN(quants_##name##_, TAEL_LEVEL)
extern const BlockKernel TAEL_FAMILY(simple)[], TAEL_FAMILY(k_affine)[], TAEL_FAMILY(k_symmetric)[], TAEL_FAMILY(iq4)[],
    TAEL_FAMILY(iq_grids)[], TAEL_FAMILY(iq1)[];

namespace {
constexpr const BlockKernel* kFamilies[] = {TAEL_FAMILY(simple), TAEL_FAMILY(k_affine), TAEL_FAMILY(k_symmetric),
                                            TAEL_FAMILY(iq4),    TAEL_FAMILY(iq_grids), TAEL_FAMILY(iq1),
                                            nullptr};
}  // namespace

extern const Kernels TAEL_JOIN(kernels_, TAEL_LEVEL) = {
    .name = TAEL_TEXT(TAEL_LEVEL),
    .crc32 = crc_update<kZlib>,
    .crc32c = crc_update<kCastagnoli>,
    .f32_to_bf16 = narrow_f32<BF16>,
    .f32_to_f16 = narrow_f32<F16>,
    .f32_to_f8_e4m3 = narrow_f32<F8E4M3>,
    .f32_to_f8_e5m2 = narrow_f32<F8E5M2>,
    .f64_to_f32 = f64_to_f32,
    .bf16_to_f32 = bf16_to_f32,
    .f16_to_f32 = widen<F16>,
    .f8_e4m3_to_f32 = widen<F8E4M3>,
    .f8_e5m2_to_f32 = widen<F8E5M2>,
    .f64_to_f32_odd = f64_to_f32_odd,
    .first_difference = first_difference,
    .count_differences = count_differences,
    .stats_f32 = stats_f32,
    .errors_f32 = errors_f32,
    .first_nonfinite = first_nonfinite,
    .families = kFamilies,
};

}  // namespace tael
