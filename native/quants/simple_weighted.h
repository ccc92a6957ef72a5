// SPDX-License-Identifier: Apache-2.0
// Q4_0, Q4_1, Q5_0 and Q5_1 with importances: each element weighs its importance times the root of its square and the
// row's mean square; then a search per block (simple_search.h), kPair times kLanes blocks at a time.
#pragma once

#include "simple_search.h"

namespace tael {
namespace {

// The mean of a row's squares, summed in order; rows in lanes.
inline vf mean_squares(const float* const (&rows)[kLanes], size_t row_length) {
    vf sum = every(0.0f);
    for (size_t at = 0; at < row_length; at += 4) {
        vf four[4];
        columns(rows, at, four);
        for (int i = 0; i < 4; ++i) sum += four[i] * four[i];
    }
    return sum / every(float(row_length));
}

// Blocks of 32 of several rows, and what weighs them.
struct WeightedBlocks {
    const float *source, *importances;
    size_t count, per_row;
    float spread[kLanes];

    // Blocks first..first + kLanes - 1 to lanes; beyond the end the last again.
    void gather(size_t first, Lanes32& out) const {
        const float *from[kLanes], *weights[kLanes];
        float weight[kLanes][32];
        for (int lane = 0; lane < kLanes; ++lane) {
            const size_t block = first + size_t(lane) < count ? first + size_t(lane) : count - 1;
            const float *x = source + block * 32, *importance = importances + block % per_row * 32;
            const float mean = spread[block / per_row];
            for (int i = 0; i < 32; ++i) weight[lane][i] = importance[i] * __builtin_sqrtf(mean + x[i] * x[i]);
            from[lane] = x, weights[lane] = weight[lane];
        }
        for (int at = 0; at < 32; at += 4) {
            vf four[4];
            columns(from, size_t(at), four);
            for (int i = 0; i < 4; ++i) out.x[at + i] = four[i];
            columns(weights, size_t(at), four);
            for (int i = 0; i < 4; ++i) out.weight[at + i] = four[i];
        }
    }
};

// Codes of each block as bytes.
inline void scatter(const vf (&codes)[32][kPair], uint32_t (&out)[kPair * kLanes][8]) {
    for (int k = 0; k < kPair; ++k) {
        for (int word = 0; word < 8; ++word) {
            vi four = truncate(codes[4 * word][k]);
            for (int i = 1; i < 4; ++i) four |= truncate(codes[4 * word + i][k]) << (8 * i);
            int32_t lanes[kLanes];
            write(lanes, four);
            for (int lane = 0; lane < kLanes; ++lane) out[k * kLanes + lane][word] = uint32_t(lanes[lane]);
        }
    }
}

template <bool affine, bool fifth>
void quantize_weighted(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* importances) {
    constexpr int bytes = 18 + 2 * affine + 4 * fifth, steps = affine ? (fifth ? 31 : 15) : (fifth ? 16 : 8);
    constexpr int together = kPair * kLanes;
    while (rows != 0) {
        const size_t part = rows < size_t(kLanes) ? rows : kLanes;
        WeightedBlocks blocks = {source, importances, part * (row_length / 32), row_length / 32, {}};
        const float* starts[kLanes];
        for (size_t r = 0; r < size_t(kLanes); ++r) starts[r] = source + (r < part ? r : part - 1) * row_length;
        store(blocks.spread, mean_squares(starts, row_length));
        for (size_t first = 0; first < blocks.count; first += together) {
            Lanes32 lanes[kPair];
            vf codes[32][kPair];
            uint32_t half[together], half_minimum[together] = {}, flat[together][8];
            for (int k = 0; k < kPair; ++k) blocks.gather(first + size_t(k) * kLanes, lanes[k]);
            if constexpr (affine) {
                Affinity state[kPair];
                search_affine<steps>(lanes, state, codes);
                for (int k = 0; k < kPair; ++k) {
                    write_halves(state[k].none ? every(0.0f) : state[k].scale, half + k * kLanes);
                    write_halves(state[k].none ? state[k].first_low : state[k].low, half_minimum + k * kLanes);
                }
            } else {
                for (int k = 0; k < kPair; ++k)
                    write_halves(search_symmetric<steps>(lanes[k], k, codes), half + k * kLanes);
            }
            scatter(codes, flat);
            for (int i = 0; i < together && first + size_t(i) < blocks.count; ++i, out += bytes) {
                put_half(out, half[i]);
                if constexpr (affine) put_half(out + 2, half_minimum[i]);
                put_codes<fifth>(out + 2 + 2 * affine, read<bytes32>(flat[i]));
            }
        }
        source += part * row_length, rows -= part;
    }
}

}  // namespace
}  // namespace tael
