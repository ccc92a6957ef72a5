// SPDX-License-Identifier: Apache-2.0
// The scale of a group of sixteen for codes in [-reach, reach - 1] by refinement: from the codes of -reach / max, one
// code after the other moves to where the scale of the others puts it, if the error (weighted by x * x) falls; up to
// five rounds. ggml's make_q3_quants.
//
// Each step needs the sums the step before left, but few steps change a code. So a step first asks without a division
// whether any lane could change, and goes on guessing that none does. A lane without a change in a round has none in
// later rounds, so rounds go on while any lane changes.
#pragma once

#include "symmetric_search.h"

namespace tael {
namespace {

// Between lowest * s and highest * s a quotient by s surely rounds to `code`: a thousandth is far more than the
// roundings of both products and of the quotient (below the normal range, too). The outer codes take all beyond them,
// as far as the adder of the reference rounds rightly: these bits make +-(3.5 ... 4.5) a number of 2^20 to 2^21.
constexpr float kSure = 0.499f;
constexpr int32_t kFar = 0x49800000;

template <int reach>
struct Refined {
    static_assert(reach == 4);
    vf code[kSub], lx_part[kSub], l2_part[kSub], lowest[kSub], highest[kSub];
    vf lx, l2;

    void set(int i, vf x, vf l) {
        const vf w = x * x;
        code[i] = l;
        lx_part[i] = w * x * l, l2_part[i] = w * l * l;
        lowest[i] = vf(vi(l - kSure) | ((l == float(-reach)) & kFar));
        highest[i] = vf(vi(l + kSure) | ((l == float(reach - 1)) & kFar));
    }

    // False if the code of element i stays in every lane.
    bool unsure(int i, vf x) const {
        const vf slx = lx - lx_part[i], scaled = x * (l2 - l2_part[i]);
        const vi stays = (scaled > lowest[i] * slx) & (scaled < highest[i] * slx);
        return some((slx > 0.0f) & ~stays);
    }

    bool step(int i, vf x) {
        const vf w = x * x;
        vf slx = lx - lx_part[i], sl2 = l2 - l2_part[i];
        const vi positive = slx > 0.0f;
        const vf moved = to_float(held<reach>(nearest(x * sl2 / slx)));
        slx += w * x * moved, sl2 += w * moved * moved;
        const vi better = positive & (moved != code[i]) & (sl2 > 0.0f) & (slx * slx * l2 > lx * lx * sl2);
        if (!some(better)) return false;
        lx = choose(better, slx, lx), l2 = choose(better, sl2, l2);
        set(i, x, choose(better, moved, code[i]));
        return true;
    }
};

// Returns the scales, 0 for zero groups; the codes (without reach) stay in `fit`.
template <int reach>
inline vf refine(const vf* x, Refined<reach>& fit, vi& zero) {
    vf max;
    zero = extreme(x, max) < kTiniest;
    const vf inverse = choose(zero, vf{}, spread(-reach) / max);  // codes and sums of zero stay as they are
    fit.lx = fit.l2 = vf{};
#pragma GCC unroll 4
    for (int i = 0; i < kSub; ++i) {
        fit.set(i, x[i], rounded<reach, false, true>(inverse * x[i]));
        fit.lx += fit.lx_part[i], fit.l2 += fit.l2_part[i];
    }
    bool changed = true;
    for (int round = 0; changed && round < 5; ++round) {
        changed = false;
#pragma GCC unroll 4
        for (int i = 0; i < kSub; ++i)
            if (__builtin_expect(fit.unsure(i, x[i]), 0)) changed |= fit.step(i, x[i]);
    }
    return choose(fit.l2 > 0.0f, fit.lx / fit.l2, vf{});
}

}  // namespace
}  // namespace tael
