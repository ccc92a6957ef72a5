// SPDX-License-Identifier: Apache-2.0
// CRC-32 and CRC-32C: carry-less multiplication where the level has it, the ARM instruction on aarch64, else 16
// bytes a step from tables. One routine for both, since only the polynomial differs.
#pragma once

#include "memory.h"
#include "polynomial.h"

#if defined(__PCLMUL__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace tael {
namespace {

template <uint32_t P>
struct CrcTables {
    uint32_t at[16][256];
    constexpr CrcTables() : at() {
        for (uint32_t byte = 0; byte < 256; ++byte) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; ++bit) crc = times_x<P>(crc);
            at[0][byte] = crc;
        }
        for (int zeros = 1; zeros < 16; ++zeros)
            for (int byte = 0; byte < 256; ++byte)
                at[zeros][byte] = (at[zeros - 1][byte] >> 8) ^ at[0][at[zeros - 1][byte] & 255];
    }
};

template <uint32_t P>
constexpr CrcTables<P> crc_tables{};

// `state` is the CRC without its final inversion.
template <uint32_t P>
uint32_t crc_by_tables(uint32_t state, const uint8_t* data, size_t n) {
    const auto& at = crc_tables<P>.at;
    for (; n >= 16; data += 16, n -= 16) {
        uint32_t word[4];
        memcpy(word, data, 16);
        word[0] ^= state;
        state = 0;
        for (int w = 0; w < 4; ++w)
            for (int byte = 0; byte < 4; ++byte) state ^= at[15 - 4 * w - byte][(word[w] >> (8 * byte)) & 255];
    }
    for (; n != 0; ++data, --n) state = (state >> 8) ^ at[0][(state ^ *data) & 255];
    return state;
}

#if defined(__PCLMUL__)

// Multipliers that move a 128-bit remainder `bits` further up the message; the first serves its low half, which
// comes first in the stream and so has the higher powers.
template <uint32_t P, int bits>
constexpr uint64_t kFoldLow = uint64_t{power<P>(bits + 32)} << 1;
template <uint32_t P, int bits>
constexpr uint64_t kFoldHigh = uint64_t{power<P>(bits - 32)} << 1;
static_assert(kFoldLow<kZlib, 512> == 0x154442bd4 && kFoldHigh<kZlib, 512> == 0x1c6e41596, "as Intel printed them");

template <uint32_t P, int bits>
inline __m128i fold(__m128i remainder, __m128i data) {
    const __m128i k = _mm_set_epi64x(int64_t(kFoldHigh<P, bits>), int64_t(kFoldLow<P, bits>));
    const __m128i low = _mm_clmulepi64_si128(remainder, k, 0x00), high = _mm_clmulepi64_si128(remainder, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

inline __m128i load128(const uint8_t* data) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data)); }

#if defined(__VPCLMULQDQ__) && defined(__AVX512F__)

constexpr size_t kFoldStep = 256;  // four registers of 64 bytes

template <uint32_t P, int bits>
inline __m512i fold_wide(__m512i remainder, __m512i data) {
    const __m512i k = _mm512_broadcast_i32x4(_mm_set_epi64x(int64_t(kFoldHigh<P, bits>), int64_t(kFoldLow<P, bits>)));
    const __m512i low = _mm512_clmulepi64_epi128(remainder, k, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(remainder, k, 0x11);
    return _mm512_ternarylogic_epi64(low, high, data, 0x96);  // a xor b xor c
}

template <uint32_t P>
__m128i fold_steps(uint32_t state, const uint8_t*& data, size_t& n) {
    __m512i acc[4];
    for (int i = 0; i < 4; ++i) acc[i] = _mm512_loadu_si512(data + 64 * i);
    acc[0] = _mm512_xor_si512(acc[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(int32_t(state))));
    for (data += kFoldStep, n -= kFoldStep; n >= kFoldStep; data += kFoldStep, n -= kFoldStep)
        for (int i = 0; i < 4; ++i) acc[i] = fold_wide<P, 2048>(acc[i], _mm512_loadu_si512(data + 64 * i));
    for (int i = 1; i < 4; ++i) acc[0] = fold_wide<P, 512>(acc[0], acc[i]);
    __m128i result = _mm512_castsi512_si128(acc[0]);
    result = fold<P, 128>(result, _mm512_extracti32x4_epi32(acc[0], 1));
    result = fold<P, 128>(result, _mm512_extracti32x4_epi32(acc[0], 2));
    return fold<P, 128>(result, _mm512_extracti32x4_epi32(acc[0], 3));
}

#else

constexpr size_t kFoldStep = 128;  // eight registers of 16 bytes hide the latency of the multiplier

template <uint32_t P>
__m128i fold_steps(uint32_t state, const uint8_t*& data, size_t& n) {
    __m128i acc[8];
    for (int i = 0; i < 8; ++i) acc[i] = load128(data + 16 * i);
    acc[0] = _mm_xor_si128(acc[0], _mm_cvtsi32_si128(int32_t(state)));
    for (data += kFoldStep, n -= kFoldStep; n >= kFoldStep; data += kFoldStep, n -= kFoldStep)
        for (int i = 0; i < 8; ++i) acc[i] = fold<P, 1024>(acc[i], load128(data + 16 * i));
    for (int i = 1; i < 8; ++i) acc[0] = fold<P, 128>(acc[0], acc[i]);
    return acc[0];
}

#endif

template <uint32_t P>
uint32_t crc_state(uint32_t state, const uint8_t* data, size_t n) {
    if (n >= kFoldStep) {
        __m128i remainder = fold_steps<P>(state, data, n);
        for (; n >= 16; data += 16, n -= 16) remainder = fold<P, 128>(remainder, load128(data));
        uint8_t last[16];
        memcpy(last, &remainder, 16);
        state = crc_by_tables<P>(0, last, 16);
    }
    return crc_by_tables<P>(state, data, n);
}

#elif defined(__ARM_FEATURE_CRC32)

template <uint32_t P>
uint32_t crc_state(uint32_t state, const uint8_t* data, size_t n) {
    for (; n >= 8; data += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        state = P == kZlib ? __crc32d(state, word) : __crc32cd(state, word);
    }
    return crc_by_tables<P>(state, data, n);
}

#else

template <uint32_t P>
uint32_t crc_state(uint32_t state, const uint8_t* data, size_t n) {
    return crc_by_tables<P>(state, data, n);
}

#endif

template <uint32_t P>
uint32_t crc_update(uint32_t crc, const void* data, size_t n_bytes) {
    return ~crc_state<P>(~crc, static_cast<const uint8_t*>(data), n_bytes);
}

}  // namespace
}  // namespace tael
