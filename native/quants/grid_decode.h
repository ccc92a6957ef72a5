// SPDX-License-Identifier: Apache-2.0
// Blocks of the IQ2 and IQ3 types back to float32.
#pragma once

#include "eight.h"
#include "grid_types.h"

namespace tael {
namespace {

// Entries as the bytes they stand for, first value lowest.
template <class Word, int size>
struct Bytes {
    Word at[size];
};
template <class Word, int size>
constexpr Bytes<Word, size> spread(const uint16_t (&points)[size], const uint8_t* values, int bits) {
    Bytes<Word, size> out{};
    for (int number = 0; number < size; ++number)
        for (int i = 0; i < int(sizeof(Word)); ++i)
            out.at[number] |= Word(values[points[number] >> (bits * i) & ((1 << bits) - 1)]) << (8 * i);
    return out;
}
constexpr uint8_t kValues2[4] = {8, 25, 43, 0}, kValues3xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62},
                  kValues3s[8] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr auto kBytesIq2xxs = spread<uint64_t>(kPointsIq2xxs, kValues2, 2);
constexpr auto kBytesIq2xs = spread<uint64_t>(kPointsIq2xs, kValues2, 2);
constexpr auto kBytesIq2s = spread<uint64_t>(kPointsIq2s, kValues2, 2);
constexpr auto kBytesIq3xxs = spread<uint32_t>(kPointsIq3xxs, kValues3xxs, 3);
constexpr auto kBytesIq3s = spread<uint32_t>(kPointsIq3s, kValues3s, 3);

inline float scale_of(const uint8_t* block) {
    uint16_t code;
    memcpy(&code, block, 2);
    return as_float(widen_one<F16>(code));
}
inline uint32_t word_at(const uint8_t* from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return word;
}
inline uint64_t both(uint32_t low, uint32_t high) { return low | uint64_t(high) << 32; }
// Seven signs, the eighth makes their number even.
inline uint32_t even_signs(uint32_t seven) {
    seven &= 0x7F;
    return seven | (0x6996u >> ((seven ^ seven >> 4) & 15) & 1) << 7;
}

// Eight values: bytes times a scale, with a sign bit each.
inline void put_eight(float* out, uint64_t bytes, uint32_t signs, float scale) {
    typedef uint8_t bytes8 __attribute__((vector_size(8)));
    typedef uint32_t words8 __attribute__((vector_size(32)));
    bytes8 raw;
    memcpy(&raw, &bytes, 8);
    const eight_f value = __builtin_convertvector(__builtin_convertvector(raw, eight_i), eight_f) * scale;
    const words8 sign = ((words8{} + signs) << words8{31, 30, 29, 28, 27, 26, 25, 24}) & 0x80000000u;
    const words8 result = words8(value) ^ sign;
    memcpy(out, &result, 32);
}

void dequantize_iq2xxs(const uint8_t* source, float* out, size_t blocks) {
    for (size_t block = 0; block < blocks; ++block, source += 66) {
        const float d = scale_of(source);
        for (int i = 0; i < 8; ++i) {
            const uint8_t* part = source + 2 + 8 * i;
            const uint32_t rest = word_at(part + 4);
            const float scale = d * (0.5f + float(rest >> 28)) * 0.25f;
            for (int k = 0; k < 4; ++k, out += 8)
                put_eight(out, kBytesIq2xxs.at[part[k]], even_signs(rest >> (7 * k)), scale);
        }
    }
}

void dequantize_iq2xs(const uint8_t* source, float* out, size_t blocks) {
    for (size_t block = 0; block < blocks; ++block, source += 74) {
        const float d = scale_of(source);
        for (int i = 0; i < 16; ++i) {
            const uint32_t pair = word_at(source + 2 + 4 * i);
            const uint32_t level = source[66 + i / 2] >> (i % 2 * 4) & 15u;
            const float scale = d * (0.5f + float(level)) * 0.25f;
            put_eight(out, kBytesIq2xs.at[pair & 511], even_signs(pair >> 9), scale);
            put_eight(out + 8, kBytesIq2xs.at[pair >> 16 & 511], even_signs(pair >> 25), scale);
            out += 16;
        }
    }
}

void dequantize_iq2s(const uint8_t* source, float* out, size_t blocks) {
    for (size_t block = 0; block < blocks; ++block, source += 82) {
        const float d = scale_of(source);
        for (int i = 0; i < 32; ++i, out += 8) {
            const uint32_t entry = source[2 + i] | (uint32_t(source[66 + i / 4]) << (8 - i % 4 * 2) & 0x300u);
            const uint32_t level = source[74 + i / 4] >> (i / 2 % 2 * 4) & 15u;
            put_eight(out, kBytesIq2s.at[entry], source[34 + i], d * (0.5f + float(level)) * 0.25f);
        }
    }
}

void dequantize_iq3xxs(const uint8_t* source, float* out, size_t blocks) {
    for (size_t block = 0; block < blocks; ++block, source += 98) {
        const float d = scale_of(source);
        for (int i = 0; i < 8; ++i) {
            const uint8_t* entries = source + 2 + 8 * i;
            const uint32_t rest = word_at(source + 66 + 4 * i);
            const float scale = d * (0.5f + float(rest >> 28)) * 0.5f;
            for (int k = 0; k < 4; ++k, out += 8)
                put_eight(out, both(kBytesIq3xxs.at[entries[2 * k]], kBytesIq3xxs.at[entries[2 * k + 1]]),
                          even_signs(rest >> (7 * k)), scale);
        }
    }
}

void dequantize_iq3s(const uint8_t* source, float* out, size_t blocks) {
    for (size_t block = 0; block < blocks; ++block, source += 110) {
        const float d = scale_of(source);
        for (int i = 0; i < 8; ++i) {
            const uint32_t high = source[66 + i], level = source[106 + i / 2] >> (i % 2 * 4) & 15u;
            const float scale = d * float(1 + 2 * level);
            for (int k = 0; k < 4; ++k, out += 8) {
                const uint8_t* entries = source + 2 + 8 * i + 2 * k;
                const uint32_t first = entries[0] | (high << (8 - 2 * k) & 256);
                const uint32_t second = entries[1] | (high << (7 - 2 * k) & 256);
                put_eight(out, both(kBytesIq3s.at[first], kBytesIq3s.at[second]), source[74 + 4 * i + k], scale);
            }
        }
    }
}

}  // namespace
}  // namespace tael
