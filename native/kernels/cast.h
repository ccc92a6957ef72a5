// SPDX-License-Identifier: Apache-2.0
// Casts between float32 and the narrower floats: round to nearest even, branch-free so that compilers vectorize them.
//
// A narrowing cast of a normal value adds half of the last kept place (less one, plus the kept place's parity) to the
// bits as an integer; the carry runs into the exponent as it should. A value below the target's normal range is
// rounded by the adder instead: added to the power of two whose last place is the target's smallest step.
// Method: F. Giesen, "Float to half conversion", public domain.
#pragma once

#include "memory.h"

namespace tael {
namespace {

constexpr uint32_t kInfinity = 0x7F800000u;

// Each kind: kept mantissa bits, exponent bias, total bits, the code of an overflow (and of infinity), the code of
// NaN, the bits of a NaN's payload that stay, the largest finite code, and the bits of the smallest float32 that
// rounds beyond it. ml_dtypes drops payloads; numpy and processors keep what fits into F16.
struct BF16 {
    using Word = u16;
    static constexpr int mantissa = 7, bias = 127, bits = 16;
    static constexpr uint32_t overflow = 0x7F80, nan = 0x7FC0, payload = 0, largest = 0x7F7F, limit = 0x7F7F8000;
};
struct F16 {
    using Word = u16;
    static constexpr int mantissa = 10, bias = 15, bits = 16;
    static constexpr uint32_t overflow = 0x7C00, nan = 0x7E00, payload = 0x1FF, largest = 0x7BFF, limit = 0x477FF000;  // 65520
};
struct F8E4M3 {
    using Word = uint8_t;
    static constexpr int mantissa = 3, bias = 7, bits = 8;
    static constexpr uint32_t overflow = 0x7F, nan = 0x7F, payload = 0, largest = 0x7E, limit = 0x43E80001;  // over 464
};
struct F8E5M2 {
    using Word = uint8_t;
    static constexpr int mantissa = 2, bias = 15, bits = 8;
    static constexpr uint32_t overflow = 0x7C, nan = 0x7E, payload = 0, largest = 0x7B, limit = 0x47700000;  // 61440
};

// All ones where a < b, for values below 2^31. Comparisons as arithmetic: what a vectorizer always understands.
inline uint32_t below(uint32_t a, uint32_t b) { return uint32_t(int32_t(a - b) >> 31); }
inline uint32_t choose(uint32_t mask, uint32_t yes, uint32_t no) { return (yes & mask) | (no & ~mask); }

template <class To, bool saturate>
inline uint32_t narrow_one(uint32_t bits, uint32_t& overflows) {
    constexpr int shift = 23 - To::mantissa;
    constexpr uint32_t rebias = uint32_t(127 - To::bias) << 23;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t odd = (magnitude >> shift) & 1;
    uint32_t code = (magnitude + odd + ((1u << (shift - 1)) - 1) - rebias) >> shift;
    if constexpr (To::bias != 127) {
        constexpr uint32_t smallest_normal = rebias + (1u << 23);
        constexpr uint32_t adder = uint32_t(127 - To::bias + 1 - To::mantissa + 23) << 23;
        const uint32_t subnormal = as_bits(as_float(magnitude) + as_float(adder)) - adder;
        code = choose(below(magnitude, smallest_normal), subnormal, code);
    }
    const uint32_t fits = below(magnitude, To::limit), finite = below(magnitude, kInfinity);
    overflows += (finite & ~fits) & 1;
    code = choose(fits, code, saturate ? choose(finite, To::largest, To::overflow) : To::overflow);
    code = choose(below(kInfinity, magnitude), To::nan | (magnitude >> shift & To::payload), code);
    return code | (bits >> 31 << (To::bits - 1));
}

template <class To, bool saturate>
uint64_t narrow_all(const u32* source, typename To::Word* out, size_t n) {
    uint64_t total = 0;
    while (n != 0) {  // a 32-bit count inside keeps the vectors one width
        const size_t part = n < 65536 ? n : 65536;
        uint32_t overflows = 0;
        for (size_t i = 0; i < part; ++i) out[i] = typename To::Word(narrow_one<To, saturate>(source[i], overflows));
        total += overflows;
        source += part, out += part, n -= part;
    }
    return total;
}

template <class To>
uint64_t narrow_f32(const void* source, void* out, size_t n, bool saturate) {
    const auto* __restrict from = static_cast<const u32*>(source);
    auto* __restrict to = static_cast<typename To::Word*>(out);
    return saturate ? narrow_all<To, true>(from, to, n) : narrow_all<To, false>(from, to, n);
}

inline void bf16_to_f32(const void* source, void* out, size_t n) {
    const auto* __restrict from = static_cast<const u16*>(source);
    auto* __restrict to = static_cast<u32*>(out);
    for (size_t i = 0; i < n; ++i) to[i] = uint32_t(from[i]) << 16;
}

// float32 bits of a code. A subnormal is what the smallest normal with its mantissa has over the smallest normal.
template <class From>
inline uint32_t widen_one(uint32_t code) {
    constexpr int shift = 23 - From::mantissa;
    constexpr uint32_t sign_bit = 1u << (From::bits - 1), rebias = uint32_t(127 - From::bias) << 23;
    constexpr uint32_t smallest_normal = rebias + (1u << 23);
    const uint32_t unsigned_code = code & (sign_bit - 1), magnitude = unsigned_code << shift;
    const uint32_t subnormal = as_bits(as_float(magnitude + smallest_normal) - as_float(smallest_normal));
    uint32_t value = choose(below(magnitude, 1u << 23), subnormal, magnitude + rebias);
    constexpr bool has_infinity = From::overflow != From::nan;
    if constexpr (has_infinity) value = choose(below(From::largest, unsigned_code), kInfinity, value);
    const uint32_t nan = From::payload ? kInfinity | magnitude : kInfinity | 1u << 22;
    value = choose(below(has_infinity ? From::overflow : From::largest, unsigned_code), nan, value);
    return value | (code & sign_bit) << (32 - From::bits);
}

template <class From>
void widen(const void* source, void* out, size_t n) {
    const auto* __restrict from = static_cast<const typename From::Word*>(source);
    auto* __restrict to = static_cast<u32*>(out);
    for (size_t i = 0; i < n; ++i) to[i] = widen_one<From>(from[i]);
}

inline uint64_t f64_to_f32(const void* source, void* out, size_t n, bool saturate) {
    const auto* __restrict from = static_cast<const f64*>(source);
    auto* __restrict to = static_cast<u32*>(out);
    uint64_t overflows = 0;
    const uint32_t beyond = saturate ? 0x7F7FFFFFu : kInfinity;
    for (size_t i = 0; i < n; ++i) {
        const double value = from[i];
        const uint32_t bits = as_bits(float(value));
        const bool over = (bits & 0x7FFFFFFFu) == kInfinity && __builtin_fabs(value) <= __DBL_MAX__;
        overflows += over;
        to[i] = over ? (bits & 0x80000000u) | beyond : bits;
    }
    return overflows;
}

// Round to odd: of the two float32 around an inexact value, the one whose last bit is set. A second rounding to 22 or
// fewer bits then gives what one rounding from float64 would have given. Finite stays finite.
// Source: Boldo & Melquiond, "When double rounding is odd", 2005.
inline void f64_to_f32_odd(const void* source, void* out, size_t n) {
    const auto* __restrict from = static_cast<const f64*>(source);
    auto* __restrict to = static_cast<u32*>(out);
    for (size_t i = 0; i < n; ++i) {
        const double value = from[i];
        const float nearest = float(value);
        const uint32_t bits = as_bits(nearest);
        const double back = double(nearest);
        const uint32_t inexact = (back < value) | (back > value);  // false for NaN
        const uint32_t towards = __builtin_fabs(back) < __builtin_fabs(value) ? 1u : uint32_t(-1);
        to[i] = bits + (inexact & ~bits & 1 ? towards : 0);
    }
}

}  // namespace
}  // namespace tael
