// SPDX-License-Identifier: Apache-2.0
// The scale of 32 elements for IQ4_NL and IQ4_XS: sixteen trial scales, a sub-block in each lane. But for one, a trial
// takes the peak to a number from -134 to -120. So from the first of these to the last a scaled element moves towards
// zero by 14/134 of itself, and midpoints lie further apart than that: each element changes its level at most once. Its
// two levels and the trial where it changes are found beforehand; what is left of a trial are its sums, in order.
#pragma once

#include "iq4_levels.h"

namespace tael {
namespace {

constexpr float kIq4Nothing = 1e-15f;  // sub-blocks whose largest magnitude is below have no scale
constexpr int kIq4Trials = 15, kIq4First = -134;
constexpr int kIq4Together = kLanes == 16 ? 5 : 3;  // trials whose sums fit into registers

constexpr bool one_change_each() {
    for (int i = 0; i < 14; ++i) {
        const float a = iq4_midpoint(i), b = iq4_midpoint(i + 1);
        if (a < 0 && b < 0 && a / b < 134.0f / 119.0f) return false;
        if (a > 0 && b > 0 && b / a < 134.0f / 119.0f) return false;
    }
    return true;
}
static_assert(one_change_each());

struct Iq4Block {
    vf x[32], weight[32];
};

struct Iq4Sums {
    vf products, squares;
    void add(vf weight, vf level, vf x) {
        const vf weighted = weight * level;
        products += weighted * x;
        squares += weighted * level;
    }
};

// Per element: the terms of its first level, the bits in which those of its last differ, and how many trials have the
// first.
struct Iq4Changes {
    vf product[32], square[32];
    vi product_change[32], square_change[32], until[32];

    void find(const Iq4Block& block, const vf (&inverse)[kIq4Trials]) {
        for (int i = 0; i < 32; ++i) {
            const vf x = block.x[i], start = inverse[0] * x, end = inverse[kIq4Trials - 1] * x;
            vf level, edge, step;
            Iq4Place(start).get_all(level, edge, step);
            const vi positive = edge > every(0.0f);
            // Start and end are on the same side, or one is on the edge, which belongs to the upper level.
            const vi changes = vi(step != every(0.0f)) & ~(vi(end < edge) ^ positive);
            const vf trial = every(-kIq4First) - every(-kIq4First) * (edge / start);
            const vi whole = truncate(trial + every(0.5f));
            const vi unsure = changes & vi(magnitude(trial - to_float(whole)) < every(0.01f));
            vi count = changes ? truncate(trial) + 1 : splat_i(kIq4Trials);
            if (__builtin_expect(some(unsure), 0)) {
                vi exact = {};
                for (int t = 0; t < kIq4Trials; ++t) exact -= vi(inverse[t] * x < edge) ^ positive;
                count = changes ? exact : count;
            }
            until[i] = count;
            const vf weighted = block.weight[i] * level, next = level + step, next_weighted = block.weight[i] * next;
            product[i] = weighted * x, square[i] = weighted * level;
            product_change[i] = vi(product[i]) ^ vi(next_weighted * x);
            square_change[i] = vi(square[i]) ^ vi(next_weighted * next);
        }
    }

    template <int n>
    void sum(int first, Iq4Sums (&out)[n]) const {
        vf products[n], squares[n];
        for (int t = 0; t < n; ++t) products[t] = squares[t] = every(0.0f);
        for (int i = 0; i < 32; ++i) {
            const vi p = vi(product[i]), s = vi(square[i]), p_change = product_change[i], s_change = square_change[i];
            const vi from = until[i];
#pragma GCC unroll 8
            for (int t = 0; t < n; ++t) {
                const vi changed = ~(from > splat_i(first + t));
                products[t] += vf(p ^ (changed & p_change));
                squares[t] += vf(s ^ (changed & s_change));
            }
        }
        for (int t = 0; t < n; ++t) out[t] = {products[t], squares[t]};
    }
};

// Zero for lanes of nothing.
inline vf iq4_scale(const Iq4Block& block) {
    vf peak = every(0.0f), most = peak;
    for (int i = 0; i < 32; ++i) {
        const vf size = magnitude(block.x[i]);
        const vi more = size > most;
        most = larger(size, most);
        peak = more ? block.x[i] : peak;
    }
    const vi nothing = most < every(kIq4Nothing);
    peak = nothing ? every(1.0f) : peak;

    Iq4Sums sums{every(0.0f), every(0.0f)};
    const vf opposite = every(1.0f) / (-peak / every(-127.0f));
    for (int i = 0; i < 32; ++i) {
        const vf level = Iq4Place(opposite * block.x[i]).get<&Iq4Row::value>();
        sums.add(block.weight[i], level, block.x[i]);
    }
    vf scale = sums.squares > every(0.0f) ? sums.products / sums.squares : every(0.0f);
    vf best = scale * sums.products;

    vf inverse[kIq4Trials];
    for (int t = 0; t < kIq4Trials; ++t) inverse[t] = every(float(kIq4First + t)) / peak;
    Iq4Changes changes;
    changes.find(block, inverse);
    for (int first = 0; first < kIq4Trials; first += kIq4Together) {
        Iq4Sums trials[kIq4Together];
        changes.sum(first, trials);
        for (const Iq4Sums& trial : trials) {
            const vf ratio = trial.products / trial.squares;
            const vi positive = trial.squares > every(0.0f);
            const vi better = positive & vi(trial.products * trial.products > best * trial.squares);
            scale = better ? ratio : scale;
            best = better ? ratio * trial.products : best;
        }
    }
    return nothing ? every(0.0f) : scale;
}

}  // namespace
}  // namespace tael
