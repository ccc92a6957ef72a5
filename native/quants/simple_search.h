// SPDX-License-Identifier: Apache-2.0
// For Q4_0, Q4_1, Q5_0 and Q5_1 with importances: a search over trial scales for the least weighted squared error, a
// block of 32 in each lane. Elements lie across lanes ([element][lane]), so every sum runs in the order of the
// reference. Levels are whole floats: the adder rounds to them, and clamping and products with them round as with
// integers.
#pragma once

#include "simple_plain.h"

namespace tael {
namespace {

constexpr float kNoScale = 1e-15f;  // blocks whose largest magnitude is below have none

struct Lanes32 {
    vf x[32], weight[32];
};
constexpr int kPair = 2;  // independent sums side by side, for the latency of additions

inline vf whole(vf value) { return (value + every(12582912.0f)) - every(12582912.0f); }  // nearest, for |value| < 2^22

// Levels -steps..steps-1 of an element; what can be out of range for a trial is known beforehand.
template <int steps, bool below, bool above>
inline vf signed_level(vf scaled) {
    vf level = whole(scaled);
    if constexpr (above) level = Smaller()(level, every(float(steps - 1)));
    if constexpr (below) level = Larger()(level, every(-float(steps)));
    return level;
}

struct SignedSums {
    vf products, squares;
};

// Of n trials at once.
template <int steps, bool below, bool above, int n>
inline void signed_sums(const Lanes32& block, const vf (&weighted)[32], const vf (&inverse)[n], SignedSums (&sums)[n]) {
    vf products[n], squares[n];
    for (int k = 0; k < n; ++k) products[k] = squares[k] = every(0.0f);
    for (int i = 0; i < 32; ++i) {
        for (int k = 0; k < n; ++k) {
            const vf level = signed_level<steps, below, above>(inverse[k] * block.x[i]);
            products[k] += weighted[i] * level;
            squares[k] += block.weight[i] * level * level;
        }
    }
    for (int k = 0; k < n; ++k) sums[k] = {products[k], squares[k]};
}

// Scale and codes of symmetric levels: 18 trials around the scale that maps the peak to -steps.
template <int steps>
inline vf search_symmetric(const Lanes32& block, int k, vf (&codes)[32][kPair]) {
    vf peak = every(0.0f), most = peak, weighted[32];
    for (int i = 0; i < 32; ++i) {
        const vf size = magnitude(block.x[i]);
        const vi more = size > most;
        most = more ? size : most;
        peak = more ? block.x[i] : peak;
        weighted[i] = block.weight[i] * block.x[i];
    }
    const vi none = most < every(kNoScale);
    peak = none ? every(1.0f) : peak;
    vf first[1] = {every(-float(steps)) / peak}, chosen = first[0];
    SignedSums start[1];
    signed_sums<steps, true, true>(block, weighted, first, start);
    vf scale = start[0].squares != every(0.0f) ? start[0].products / start[0].squares : every(0.0f);
    vf best = scale * start[0].products;
    constexpr int8_t trials[18] = {-9, -8, -7, -6, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    for (int at = 0; at < 18; at += kPair) {
        vf inverse[kPair];
        SignedSums sums[kPair];
        for (int t = 0; t < kPair; ++t) inverse[t] = every(-(float(steps) + 0.1f * float(trials[at + t]))) / peak;
        // The peak comes to -(steps + trial / 10): no level leaves the range above before trial -5, or below before 5.
        if (trials[at + kPair - 1] < -5) signed_sums<steps, false, false>(block, weighted, inverse, sums);
        else if (trials[at + kPair - 1] < 5) signed_sums<steps, false, true>(block, weighted, inverse, sums);
        else signed_sums<steps, true, true>(block, weighted, inverse, sums);
        for (int t = 0; t < kPair; ++t) {
            const vf products = sums[t].products, squares = sums[t].squares, ratio = products / squares;
            const vi better = vi(squares > every(0.0f)) & vi(products * products > best * squares);
            scale = better ? ratio : scale;
            best = better ? ratio * products : best;
            chosen = better ? inverse[t] : chosen;
        }
    }
    for (int i = 0; i < 32; ++i) {
        const vf code = signed_level<steps, true, true>(chosen * block.x[i]) + every(float(steps));
        codes[i][k] = none ? every(0.0f) : code;
    }
    return none ? every(0.0f) : scale;
}

// How a level from the minimum is kept in 0..steps. `wild`: what the reference's rounding by the adder makes of values
// beyond its range, infinities and NaN as well.
enum class Range { inside, clamped, wild };

template <int steps, Range range>
inline vf level_above(vf x, vf low, vf inverse) {
    const vf scaled = inverse * (x - low);
    if constexpr (range == Range::inside) return whole(scaled);
    if constexpr (range == Range::clamped) return Larger()(Smaller()(whole(scaled), every(float(steps))), every(0.0f));
    const vi level = (vi(scaled + every(12582912.0f)) & 0x007FFFFF) - 0x00400000;
    return to_float(higher(lower(level, splat_i(steps)), splat_i(0)));
}

struct AffineSums {
    vf l, l2, xl;
};

template <int steps, Range range>
inline void affine_sums(const Lanes32 (&block)[kPair], const vf (&low)[kPair], const vf (&inverse)[kPair],
                        vf (&levels)[32][kPair], AffineSums (&sums)[kPair]) {
    vf l[kPair], l2[kPair], xl[kPair];
    for (int k = 0; k < kPair; ++k) l[k] = l2[k] = xl[k] = every(0.0f);
    for (int i = 0; i < 32; ++i) {
        for (int k = 0; k < kPair; ++k) {
            const vf level = level_above<steps, range>(block[k].x[i], low[k], inverse[k]);
            const vf weighted = block[k].weight[i] * level;
            levels[i][k] = level;
            l[k] += weighted;
            l2[k] += weighted * level;
            xl[k] += weighted * block[k].x[i];
        }
    }
    for (int k = 0; k < kPair; ++k) sums[k] = {l[k], l2[k], xl[k]};
}

inline void squared_errors(const Lanes32 (&block)[kPair], const vf (&levels)[32][kPair], const vf (&scale)[kPair],
                           const vf (&low)[kPair], vf (&errors)[kPair]) {
    vf error[kPair];
    for (int k = 0; k < kPair; ++k) error[k] = every(0.0f);
    for (int i = 0; i < 32; ++i) {
        for (int k = 0; k < kPair; ++k) {
            const vf off = scale[k] * levels[i][k] + low[k] - block[k].x[i];
            error[k] += block[k].weight[i] * (off * off);
        }
    }
    for (int k = 0; k < kPair; ++k) errors[k] = error[k];
}

// What is known of a block in each lane, and the best so far.
struct Affinity {
    vf lowest, high, sum_w, sum_x, first_low, low, chosen, chosen_low, scale, least;
    vi none;

    void begin(const Lanes32& block, float steps) {
        lowest = high = block.x[0], sum_w = block.weight[0], sum_x = sum_w * block.x[0];
        for (int i = 1; i < 32; ++i) {
            lowest = Smaller()(block.x[i], lowest);
            high = Larger()(block.x[i], high);
            sum_w += block.weight[i];
            sum_x += block.weight[i] * block.x[i];
        }
        low = chosen_low = first_low = lowest > every(0.0f) ? every(0.0f) : lowest;
        none = high <= low;
        high = none ? low + every(1.0f) : high;
        chosen = every(steps) / (high - low);
        scale = every(1.0f) / chosen;
    }
};

// Scale, minimum and codes of levels from a minimum: 37 trials, each with its own least squares; a better one moves the
// minimum from which the next start.
template <int steps>
inline void search_affine(const Lanes32 (&block)[kPair], Affinity (&state)[kPair], vf (&codes)[32][kPair]) {
    vf low[kPair], inverse[kPair], new_scale[kPair], new_low[kPair], errors[kPair], levels[32][kPair];
    for (int k = 0; k < kPair; ++k) {
        state[k].begin(block[k], float(steps));
        low[k] = state[k].low, inverse[k] = state[k].chosen, new_scale[k] = state[k].scale;
        for (int i = 0; i < 32; ++i) levels[i][k] = level_above<steps, Range::wild>(block[k].x[i], low[k], inverse[k]);
    }
    squared_errors(block, levels, new_scale, low, errors);
    for (int k = 0; k < kPair; ++k) state[k].least = errors[k];
    for (int trial = 0; trial <= 36; ++trial) {
        // The extremes' levels bound all others'.
        vi inside = splat_i(-1), tame = inside;
        for (int k = 0; k < kPair; ++k) {
            low[k] = state[k].low;
            inverse[k] = every(-0.9f + 0.05f * float(trial) + float(steps)) / (state[k].high - low[k]);
            const vf bottom = inverse[k] * (state[k].lowest - low[k]), top = inverse[k] * (state[k].high - low[k]);
            inside &= vi(bottom > every(-0.49f)) & vi(top < every(steps + 0.49f));
            inside &= vi(bottom < every(2097152.0f)) & vi(top > every(-0.49f));
            tame &= vi(magnitude(bottom) < every(2097152.0f)) & vi(magnitude(top) < every(2097152.0f));
        }
        AffineSums sums[kPair];
        if (!some(~inside)) affine_sums<steps, Range::inside>(block, low, inverse, levels, sums);
        else if (!some(~tame)) affine_sums<steps, Range::clamped>(block, low, inverse, levels, sums);
        else affine_sums<steps, Range::wild>(block, low, inverse, levels, sums);
        vf determinant[kPair];
        for (int k = 0; k < kPair; ++k) {
            const AffineSums& s = sums[k];
            determinant[k] = state[k].sum_w * s.l2 - s.l * s.l;
            const vf fitted = (s.l2 * state[k].sum_x - s.l * s.xl) / determinant[k];
            const vi positive = fitted > every(0.0f);
            new_low[k] = positive ? every(0.0f) : fitted;
            new_scale[k] = positive ? s.xl / s.l2 : (state[k].sum_w * s.xl - state[k].sum_x * s.l) / determinant[k];
        }
        squared_errors(block, levels, new_scale, new_low, errors);
        for (int k = 0; k < kPair; ++k) {
            const vi better = vi(determinant[k] > every(0.0f)) & vi(errors[k] < state[k].least);
            state[k].least = better ? errors[k] : state[k].least;
            state[k].chosen = better ? inverse[k] : state[k].chosen;
            state[k].chosen_low = better ? low[k] : state[k].chosen_low;
            state[k].scale = better ? new_scale[k] : state[k].scale;
            state[k].low = better ? new_low[k] : state[k].low;
        }
    }
    for (int k = 0; k < kPair; ++k) {
        const Affinity& s = state[k];
        for (int i = 0; i < 32; ++i) {
            const vf code = level_above<steps, Range::wild>(block[k].x[i], s.chosen_low, s.chosen);
            codes[i][k] = s.none ? every(0.0f) : code;
        }
    }
}

}  // namespace
}  // namespace tael
