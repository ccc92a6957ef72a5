// SPDX-License-Identifier: Apache-2.0
// Compiled once per instruction set with TAEL_LEVEL. Only C headers and static functions (see level.cpp).
#include "block_kernel.h"

#include "lanes.h"

namespace tael {

extern const BlockKernel TAEL_JOIN(quants_iq1_, TAEL_LEVEL)[];
const BlockKernel TAEL_JOIN(quants_iq1_, TAEL_LEVEL)[] = {
    {nullptr, 0, 0, nullptr, nullptr},
};

}  // namespace tael
