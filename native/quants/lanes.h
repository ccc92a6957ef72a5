// SPDX-License-Identifier: Apache-2.0
// One sub-block in each lane: kLanes independent scalar computations side by side, each in the order of the reference,
// so that no rounding changes. GCC/Clang vector extensions; the width follows the instruction set compiled for.
#pragma once

#include "../kernels/memory.h"

namespace tael {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes)));

inline vf splat(float value) { return vf{} + value; }
inline vi splat_i(int32_t value) { return vi{} + value; }

// Comparisons of vectors give masks (vi, all ones or zero); `mask ? a : b` chooses per lane.
inline vf choose(vi mask, vf yes, vf no) { return mask ? yes : no; }
inline vi choose(vi mask, vi yes, vi no) { return mask ? yes : no; }

inline vf lower(vf a, vf b) { return a < b ? a : b; }
inline vf higher(vf a, vf b) { return a > b ? a : b; }
inline vi lower(vi a, vi b) { return a < b ? a : b; }
inline vi higher(vi a, vi b) { return a > b ? a : b; }
inline vf magnitude(vf a) { return vf(vu(a) & 0x7FFFFFFFu); }

inline vf to_float(vi a) { return __builtin_convertvector(a, vf); }
inline vi truncate(vf a) { return __builtin_convertvector(a, vi); }

// Nearest integer, ties to even, for |a| < 2^22: by the adder, as the reference does it.
inline vi nearest(vf a) { return (vi(a + 12582912.0f) & 0x007FFFFF) - 0x00400000; }
inline int32_t nearest(float a) { return int32_t(as_bits(a + 12582912.0f) & 0x007FFFFFu) - 0x00400000; }

// True when any lane of a mask is set.
inline bool any(vi mask) {
    int32_t folded = 0;
    for (int lane = 0; lane < kLanes; ++lane) folded |= mask[lane];
    return folded != 0;
}

inline vf load(const float* from) {
    vf value;
    memcpy(&value, from, sizeof value);
    return value;
}
inline void store(float* to, vf value) { memcpy(to, &value, sizeof value); }

}  // namespace
}  // namespace tael
