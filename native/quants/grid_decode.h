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
// Bytes of ones where a sign bit is set; with seven signs the eighth makes their number even.
struct SignBytes {
    uint64_t eight[256], seven[128];
};
constexpr SignBytes spread_signs() {
    SignBytes out{};
    for (uint32_t signs = 0; signs < 256; ++signs) {
        uint32_t odd = 0;
        for (int i = 0; i < 8; ++i) {
            out.eight[signs] |= uint64_t(signs >> i & 1 ? 0xFF : 0) << (8 * i);
            odd ^= signs >> i & 1;
        }
        if (!odd) out.seven[signs & 127] = out.eight[signs];
    }
    return out;
}
constexpr SignBytes kSignBytes = spread_signs();
inline uint64_t even_signs(uint32_t seven) { return kSignBytes.seven[seven & 0x7F]; }

// Eight values: bytes, negated where `signs` has ones, times a scale. No byte is zero or over 127.
inline void put_eight(float* out, uint64_t bytes, uint64_t signs, float scale) {
    typedef int8_t bytes8 __attribute__((vector_size(8)));
    bytes8 raw, flip;
    memcpy(&raw, &bytes, 8);
    memcpy(&flip, &signs, 8);
    raw = (raw ^ flip) - flip;
#if defined(__AVX2__)
    const eight_f value = eight_f(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_set_epi64x(0, int64_t(raw))))) * scale;
#else
    const eight_f value = __builtin_convertvector(__builtin_convertvector(raw, eight_i), eight_f) * scale;
#endif
    memcpy(out, &value, 32);
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
        for (int i = 0; i < 8; ++i, out += 32) {
            const uint32_t low = word_at(source + 2 + 4 * i), signs = word_at(source + 34 + 4 * i);
            const uint32_t high = source[66 + i], levels = source[74 + i];
            const float first = d * (0.5f + float(levels & 15)) * 0.25f;
            const float second = d * (0.5f + float(levels >> 4)) * 0.25f;
            put_eight(out, kBytesIq2s.at[(low & 255) | (high << 8 & 0x300)], kSignBytes.eight[signs & 255], first);
            put_eight(out + 8, kBytesIq2s.at[(low >> 8 & 255) | (high << 6 & 0x300)],
                      kSignBytes.eight[signs >> 8 & 255], first);
            put_eight(out + 16, kBytesIq2s.at[(low >> 16 & 255) | (high << 4 & 0x300)],
                      kSignBytes.eight[signs >> 16 & 255], second);
            put_eight(out + 24, kBytesIq2s.at[low >> 24 | (high << 2 & 0x300)], kSignBytes.eight[signs >> 24], second);
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
                const uint64_t signs = kSignBytes.eight[source[74 + 4 * i + k]];
                put_eight(out, both(kBytesIq3s.at[first], kBytesIq3s.at[second]), signs, scale);
            }
        }
    }
}

}  // namespace
}  // namespace tael
