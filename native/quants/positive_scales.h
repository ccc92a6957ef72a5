// SPDX-License-Identifier: Apache-2.0
// The common scale of the scales (or minima) of a super-block and their integers, weighted: a search among nine
// inverse scales, then single integers are moved while that improves the fit. One super-block in each lane.
#pragma once

#include "affine_lanes.h"

namespace tael {
namespace {

constexpr float kNothing = 1e-15f;  // the reference takes less than this for zero

// x: n values; levels: n integers as the reference's bytes. Returns the scale.
template <int n, int top>
vf positive_scale(const vf* x, const vf* w, vi* levels) {
    vf most{};
    for (int i = 0; i < n; ++i) most = higher(most, x[i]);
    const vi empty = most < splat(kNothing);
    most = choose(empty, splat(1), most);
    vf inverse = float(top) / most, error{};
    const vf start = inverse, scale = 1.0f / inverse;
    for (int i = 0; i < n; ++i) {
        const vf off = x[i] - scale * to_float(nearest(start * x[i]) & 0xFF);
        error += w[i] * off * off;
    }
    for (int trial = -4; trial <= 4; ++trial) {
        if (trial == 0) continue;
        const vf tried = (0.1f * float(trial) + float(top)) / most, step = 1.0f / tried;
        vf now{};
        for (int i = 0; i < n; ++i) {
            const vf off = x[i] - step * to_float(lower(splat_i(top), nearest(tried * x[i])));
            now += w[i] * off * off;
        }
        const vi better = now < error;
        error = choose(better, now, error);
        inverse = choose(better, tried, inverse);
    }
    vf xl{}, l2{};
    for (int i = 0; i < n; ++i) {
        const vi level = lower(splat_i(top), nearest(inverse * x[i]));
        const vf real = to_float(level);
        levels[i] = level & 0xFF;
        xl += w[i] * x[i] * real;
        l2 += w[i] * real * real;
    }
    for (int round = 0; round < 5; ++round) {
        vi changed{};
        for (int i = 0; i < n; ++i) {
            const vf wx = w[i] * x[i], real = to_float(levels[i]);
            vf new_xl = xl - wx * real, new_l2 = l2 - w[i] * real * real;
            vi moves = (new_xl > splat(0)) & (new_l2 > splat(0));
            const vi level = lower(splat_i(top), nearest(x[i] * new_l2 / new_xl));
            moves &= level != levels[i];
            const vf moved = to_float(level);
            new_xl += wx * moved;
            new_l2 += w[i] * moved * moved;
            moves &= new_xl * new_xl * l2 > xl * xl * new_l2;
            levels[i] = choose(moves, level & 0xFF, levels[i]);
            xl = choose(moves, new_xl, xl);
            l2 = choose(moves, new_l2, l2);
            changed |= moves;
        }
        if (!any_of(changed)) break;  // a lane without a change would not change again
    }
    for (int i = 0; i < n; ++i) levels[i] = choose(empty, splat_i(0), levels[i]);
    return choose(empty | ~(l2 > splat(0)), splat(0), xl / l2);
}

}  // namespace
}  // namespace tael
