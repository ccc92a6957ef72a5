// SPDX-License-Identifier: Apache-2.0
// Arithmetic on polynomials over GF(2) modulo a CRC's polynomial, bit-reflected: bit 31 is x^0. Everything that a
// CRC needs (tables, folding constants, combination) is computed from the one number P.
// Method: M. Adler's crc32_combine in zlib; Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel, 2009.
#pragma once

#include <stdint.h>

namespace tael {
namespace {

constexpr uint32_t kZlib = 0xEDB88320u;        // CRC-32 of zip, gzip, png
constexpr uint32_t kCastagnoli = 0x82F63B78u;  // CRC-32C of iSCSI, TensorBundle, TFRecord

template <uint32_t P>
constexpr uint32_t times_x(uint32_t a) {
    return (a >> 1) ^ (a & 1 ? P : 0);
}

template <uint32_t P>
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = times_x<P>(b);
    }
    return product;
}

// base^n, where base is x^1 (1u << 30) unless told.
template <uint32_t P>
constexpr uint32_t power(uint64_t n, uint32_t base = 1u << 30) {
    uint32_t result = 1u << 31;
    for (; n != 0; n >>= 1) {
        if (n & 1) result = multiply<P>(result, base);
        base = multiply<P>(base, base);
    }
    return result;
}

// The CRC of A followed by B, from the CRC of each and the length of B in bytes.
template <uint32_t P>
constexpr uint32_t combine(uint32_t crc_a, uint32_t crc_b, uint64_t n_bytes_b) {
    return multiply<P>(power<P>(n_bytes_b, 1u << 23), crc_a) ^ crc_b;
}

}  // namespace
}  // namespace tael
