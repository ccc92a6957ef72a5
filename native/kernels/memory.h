// SPDX-License-Identifier: Apache-2.0
// Element types for bytes of any alignment and any former type, and bit casts.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace tael {
namespace {

typedef uint16_t __attribute__((aligned(1), may_alias)) u16;
typedef uint32_t __attribute__((aligned(1), may_alias)) u32;
typedef uint64_t __attribute__((aligned(1), may_alias)) u64;
typedef float __attribute__((aligned(1), may_alias)) f32;
typedef double __attribute__((aligned(1), may_alias)) f64;

inline float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t as_bits(float value) { return __builtin_bit_cast(uint32_t, value); }

}  // namespace
}  // namespace tael
