// SPDX-License-Identifier: Apache-2.0
// IQ4_NL (blocks of 32) and IQ4_XS (256, with a scale for each 32): kLanes blocks at a time, one in each lane.
#pragma once

#include "iq4_search.h"

namespace tael {
namespace {

// The reference's 1 / value, with 0 for 0.
inline vf inverse_or_zero(vf value) { return value != every(0.0f) ? every(1.0f) / value : every(0.0f); }

// Codes of 32 elements as in a block: element j in the low half of byte j, j + 16 in the high half; words of each lane.
inline void iq4_codes(const vf* x, vf inverse, uint32_t (&out)[4][kLanes]) {
    for (int word = 0; word < 4; ++word) {
        vi bits = {};
        for (int byte = 0; byte < 4; ++byte) {
            const int i = 4 * word + byte;
            const vi low = Iq4Place(inverse * x[i]).number(), high = Iq4Place(inverse * x[i + 16]).number();
            bits |= (low | high << 4) << (8 * byte);
        }
        write(out[word], bits);
    }
}

void quantize_iq4_nl(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* importances) {
    const size_t count = rows * (row_length / 32);
    for (size_t first = 0; first < count; first += kLanes) {
        const BlockLanes lanes(source, importances, 32, first, count, row_length);
        Iq4Block block;
        lanes.read_x(0, 32, block.x);
        const vf sigma = importances ? lanes.squares(32) * every(2.0f / 32) : every(0.0f);
        lanes.weigh(0, 32, sigma, block.x, block.weight);
        const vf scale = iq4_scale(block);
        float half[kLanes];
        uint32_t codes[4][kLanes];
        write(half, scale);
        iq4_codes(block.x, inverse_or_zero(scale), codes);
        for (size_t lane = 0; lane < size_t(kLanes) && first + lane < count; ++lane, out += 18) {
            put_half(out, to_half(half[lane]));
            for (int word = 0; word < 4; ++word) memcpy(out + 2 + 4 * word, &codes[word][lane], 4);
        }
    }
}

void quantize_iq4_xs(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* importances) {
    constexpr int parts = 8;
    const size_t count = rows * (row_length / 256);
    for (size_t first = 0; first < count; first += kLanes) {
        const BlockLanes lanes(source, importances, 256, first, count, row_length);
        const size_t used = count - first < size_t(kLanes) ? count - first : kLanes;
        const vf sigma = importances ? lanes.squares(256) * every(2.0f / 256) : every(0.0f);
        vf scales[parts], most = every(0.0f), widest = most;
        Iq4Block block;
        for (int part = 0; part < parts; ++part) {
            lanes.read_x(32 * size_t(part), 32, block.x);
            lanes.weigh(32 * size_t(part), 32, sigma, block.x, block.weight);
            scales[part] = iq4_scale(block);
            const vf size = magnitude(scales[part]);
            const vi more = size > most;
            most = more ? size : most;
            widest = more ? scales[part] : widest;
        }
        const vf d = -widest / every(32.0f), inverse = inverse_or_zero(d);
        float half[kLanes];
        uint32_t high[kLanes], low[kLanes];
        vi high_bits = {}, low_bits = {};
        for (int part = 0; part < parts; ++part) {
            const vi level = higher(lower(nearest(inverse * scales[part]), splat_i(31)), splat_i(-32));
            const vi kept = level + 32;
            low_bits |= (kept & 15) << (4 * part);
            high_bits |= (kept >> 4) << (2 * part);
            uint32_t codes[4][kLanes];
            lanes.read_x(32 * size_t(part), 32, block.x);
            iq4_codes(block.x, inverse_or_zero(d * to_float(level)), codes);
            for (size_t lane = 0; lane < used; ++lane)
                for (int word = 0; word < 4; ++word)
                    memcpy(out + 136 * lane + 8 + 16 * part + 4 * word, &codes[word][lane], 4);
        }
        write(half, d), write(high, high_bits), write(low, low_bits);
        for (size_t lane = 0; lane < used; ++lane, out += 136) {
            put_half(out, to_half(half[lane])), put_half(out + 2, high[lane]);
            memcpy(out + 4, &low[lane], 4);
        }
    }
}

}  // namespace
}  // namespace tael
