// SPDX-License-Identifier: Apache-2.0
// Layouts of Q2_K, Q4_K and Q5_K: super-blocks of 256 values = d * scale * level - dmin * minimum.
#pragma once

#include <stddef.h>
#include <string.h>

#include "../kernels/cast.h"
#include "affine_search.h"

namespace tael {
namespace {

constexpr int kSuper = 256;

inline float half_at(const uint8_t* from) { return as_float(widen_one<F16>(uint32_t(from[0] | from[1] << 8))); }
inline void put_half(uint8_t* to, float value) {
    uint32_t overflows = 0;
    const uint32_t code = narrow_one<F16, false>(as_bits(value), overflows);
    to[0] = uint8_t(code), to[1] = uint8_t(code >> 8);
}

// Twelve bytes of eight 6-bit scales and eight 6-bit minima.
struct SixBits {
    static constexpr int count = 8, size = 32;
    static void put(uint8_t* to, const uint8_t* scales, const uint8_t* minima) {
        for (int j = 0; j < 4; ++j) {
            to[j] = uint8_t(scales[j] | (scales[j + 4] >> 4) << 6);
            to[j + 4] = uint8_t(minima[j] | (minima[j + 4] >> 4) << 6);
            to[j + 8] = uint8_t((scales[j + 4] & 0xF) | (minima[j + 4] & 0xF) << 4);
        }
    }
    static void get(const uint8_t* from, uint8_t* scales, uint8_t* minima) {
        for (int j = 0; j < 4; ++j) {
            scales[j] = from[j] & 63, minima[j] = from[j + 4] & 63;
            scales[j + 4] = uint8_t((from[j + 8] & 0xF) | (from[j] >> 6) << 4);
            minima[j + 4] = uint8_t(from[j + 8] >> 4 | (from[j + 4] >> 6) << 4);
        }
    }
};

// Sixteen bytes: a 4-bit scale, and above it a 4-bit minimum.
struct FourBits {
    static constexpr int count = 16, size = 16;
    static void put(uint8_t* to, const uint8_t* scales, const uint8_t* minima) {
        for (int j = 0; j < 16; ++j) to[j] = uint8_t(scales[j] | minima[j] << 4);
    }
    static void get(const uint8_t* from, uint8_t* scales, uint8_t* minima) {
        for (int j = 0; j < 16; ++j) scales[j] = from[j] & 15, minima[j] = from[j] >> 4;
    }
};

// `trials`: those without weights.
struct Q4K {
    using Scales = SixBits;
    static constexpr int top = 15, bytes = 144, half = 0, scales = 4;
    static constexpr Trials trials = {-1.0f, 0.1f, 20};
    static constexpr bool absolute = false, clamp_scales = false;
    // levels: 256, each in a byte.
    static void put(uint8_t* block, const uint8_t* levels) {
        uint8_t* to = block + 16;
        for (int part = 0; part < 4; ++part, to += 32, levels += 64)
            for (int i = 0; i < 32; ++i) to[i] = uint8_t(levels[i] | levels[i + 32] << 4);
    }
    // Calls put(sub-block, element, levels from there).
    template <class Put>
    static void each(const uint8_t* block, Put put) {
        const uint8_t* from = block + 16;
        for (int part = 0; part < 4; ++part, from += 32)
            for (int i = 0; i < 32; i += kLanes) {
                const vi both = widen_bytes(from + i);
                put(2 * part, i, both & 15);
                put(2 * part + 1, i, both >> 4);
            }
    }
};

struct Q5K {
    using Scales = SixBits;
    static constexpr int top = 31, bytes = 176, half = 0, scales = 4;
    static constexpr Trials trials = {-0.5f, 0.1f, 15};
    static constexpr bool absolute = false, clamp_scales = true;
    static void put(uint8_t* block, const uint8_t* levels) {
        uint8_t *fifth = block + 16, *to = block + 48;
        for (int i = 0; i < 32; ++i) {
            unsigned bits = 0;
            for (int part = 0; part < 8; ++part) bits |= unsigned(levels[part * 32 + i] >> 4) << part;
            fifth[i] = uint8_t(bits);
        }
        for (int part = 0; part < 4; ++part, to += 32, levels += 64)
            for (int i = 0; i < 32; ++i) to[i] = uint8_t((levels[i] & 15) | levels[i + 32] << 4);
    }
    template <class Put>
    static void each(const uint8_t* block, Put put) {
        const uint8_t *fifth = block + 16, *from = block + 48;
        for (int i = 0; i < 32; i += kLanes) {
            const vi bits = widen_bytes(fifth + i) << 4;
            for (int part = 0; part < 4; ++part) {
                const vi both = widen_bytes(from + 32 * part + i);
                put(2 * part, i, (both & 15) | (bits >> (2 * part) & 16));
                put(2 * part + 1, i, both >> 4 | (bits >> (2 * part + 1) & 16));
            }
        }
    }
};

struct Q2K {
    using Scales = FourBits;
    static constexpr int top = 3, bytes = 84, half = 80, scales = 0;
    static constexpr Trials trials = {-0.5f, 0.1f, 15};
    static constexpr bool absolute = true, clamp_scales = false;
    static void put(uint8_t* block, const uint8_t* levels) {
        uint8_t* to = block + 16;
        for (int part = 0; part < 2; ++part, to += 32, levels += 128)
            for (int i = 0; i < 32; ++i)
                to[i] = uint8_t(levels[i] | levels[i + 32] << 2 | levels[i + 64] << 4 | levels[i + 96] << 6);
    }
    template <class Put>
    static void each(const uint8_t* block, Put put) {
        const uint8_t* from = block + 16;
        for (int part = 0; part < 2; ++part, from += 32)
            for (int i = 0; i < 32; i += kLanes) {
                const vi four = widen_bytes(from + i);
                for (int place = 0; place < 4; ++place)
                    put(8 * part + 2 * place + i / 16, i % 16, four >> (2 * place) & 3);
            }
    }
};

template <class Type>
void dequantize_affine(const uint8_t* source, float* out, size_t blocks) {
    using Scales = typename Type::Scales;
    for (; blocks != 0; --blocks, source += Type::bytes, out += kSuper) {
        const float d = half_at(source + Type::half), dmin = half_at(source + Type::half + 2);
        uint8_t scales[16]{}, minima[16]{};  // at least a whole vector
        float scale[16], minimum[16];
        Scales::get(source + Type::scales, scales, minima);
        for (int j = 0; j < Scales::count; j += kLanes) {
            store(scale + j, d * to_float(widen_bytes(scales + j)));
            store(minimum + j, dmin * to_float(widen_bytes(minima + j)));
        }
        Type::each(source, [&](int j, int i, vi levels) {
            store(out + j * Scales::size + i, scale[j] * to_float(levels) - minimum[j]);
        });
    }
}

}  // namespace
}  // namespace tael
