// SPDX-License-Identifier: Apache-2.0
// The scale and minimum of sub-blocks: each trial rounds all elements with another inverse scale, solves the weighted
// least squares for those levels and keeps the solution when its error is smaller. One sub-block in each lane. A trial
// is a chain of four steps, each waiting for the one before: so two vectors of sub-blocks run interleaved, and several
// such pairs take turns, the short steps of one between the long loops of others.
//
// Trials that round all elements as the last one did would find the same solution again. With four levels that is most
// of them, and a table tells how far each element is from its next level: then every lane jumps on by itself.
#pragma once

#include "affine_lanes.h"

namespace tael {
namespace {

constexpr int kPairs = 4;

struct Fit {
    vf scale, minimum;   // value = scale * level + minimum
    vf inverse, origin;  // the levels are those of inverse * (x - origin)
};

// What the rounding must do beyond adding: bits for values below -1/2 and from top + 1/2; kWild: anything, also NaN
// (the rounder's bits decide, as in the reference), otherwise values are below 2^22 in magnitude.
enum Rounding { kPlain = 0, kLow = 1, kHigh = 2, kBoth = 3, kWild = 4 };

// A level and, below it, the rounder.
template <int rounding, int top>
inline vf raised_level(vf value) {
    vf sum = value + kRounder;
    if constexpr (rounding == kWild) {
        const vi level = (vi(sum) & 0x007FFFFF) - 0x00400000;
        return to_float(higher(splat_i(0), lower(splat_i(top), level))) + kRounder;
    }
    if constexpr (rounding & kHigh) sum = least(sum, splat(kRounder + top));
    if constexpr (rounding & kLow) sum = most(sum, splat(kRounder));
    return sum;
}

// The trials: `offset + step * trial` above `top`, the last one included.
struct Trials {
    float offset, step;
    int last;
    template <class V>
    V wanted(V trial, int top) const { return offset + step * trial + float(top); }
};

// Two vectors of sub-blocks of n elements. x, w: their elements and weights; weight: sums of w.
template <int n, int top, bool absolute>
struct Pair {
    static constexpr bool kJumps = top == 3 && kLookup;

    const vf *x, *w, *weight;
    Fit* best;
    Trials trials;
    int trial;  // of all lanes, unless each jumps by itself
    int rounding;
    bool done;
    vf levels[2 * n], lowest[2], highest[2], weighted_x[2], error[2];
    vi flat[2], valid[2];
    vf inverse[2], origin[2], scale[2], minimum[2];  // of the trial
    vf l[2], l2[2], xl[2], now[2];                   // sums of the trial
    vf turn[2], own_trial[2];                        // 1 / the inverse at which a level changes

    void start(const vf* elements, const vf* weights, const vf* weight_sums, Fit* fits, const Trials& wanted) {
        x = elements, w = weights, weight = weight_sums, best = fits, trials = wanted, trial = 0, done = false;
        for (int g = 0; g < 2; ++g) {
            const vf *xs = x + g * n, *ws = w + g * n;
            vf low = xs[0], high = xs[0], sum = ws[0] * xs[0];
            for (int i = 1; i < n; ++i) {
                low = least(xs[i], low), high = most(xs[i], high);
                sum += ws[i] * xs[i];
            }
            lowest[g] = low, weighted_x[g] = sum;
            low = choose(low > splat(0), splat(0), low);
            flat[g] = high == low;
            highest[g] = choose(flat[g], low + 1.0f, high);  // all levels 0: no trial can be valid
            origin[g] = minimum[g] = low;
            inverse[g] = float(top) / (highest[g] - low);
            scale[g] = 1.0f / inverse[g];
            best[g] = {scale[g], low, inverse[g], low};
            own_trial[g] = splat(0);
        }
        choose_rounding();
        for (int i = 0; i < 2 * n; ++i) {
            const vf value = inverse[i / n] * (x[i] - origin[i / n]);
            const vf raised = rounding == kWild ? raised_level<kWild, top>(value) : raised_level<kBoth, top>(value);
            levels[i] = raised - kRounder;
        }
        sum_errors();
        for (int g = 0; g < 2; ++g) error[g] = now[g];
        next_trial();
    }

    // Rounding is monotonic: the extremes bound all values (`low` from above when the origin went beyond `highest`, and
    // the inverse is negative). A value that is wild lies outside of plain as well.
    inline void choose_rounding() {
        vf low[2], high[2];
        vi below{}, above{}, wild{};
        for (int g = 0; g < 2; ++g) {
            const vf range = highest[g] - origin[g];
            low[g] = inverse[g] * (lowest[g] - origin[g]), high[g] = inverse[g] * range;
            below |= ~(low[g] >= splat(-0.5f)), above |= ~(most(low[g], high[g]) < splat(top + 0.5f));
            // The estimate of the next change needs normal numbers; with them `high` is a few units above `top` at most.
            if constexpr (kJumps)
                wild |= ~((range > splat(1e-29f)) & (range < splat(1e29f)) & (low[g] > splat(-4194303.0f)));
        }
        if constexpr (kJumps) {
            rounding = any_of(wild) ? kWild : kBoth;
            return;
        }
        rounding = (any_of(below) ? kLow : 0) | (any_of(above) ? kHigh : 0);
        if (rounding == kPlain) return;
        for (int g = 0; g < 2; ++g)
            wild |= ~((magnitude(low[g]) < splat(4194303.0f)) & (magnitude(high[g]) < splat(4194303.0f)));
        if (any_of(wild)) rounding = kWild;
    }

    inline void next_trial() {
        for (int g = 0; g < 2; ++g) {
            const vf range = highest[g] - origin[g];
            inverse[g] = kJumps ? trials.wanted(own_trial[g], top) / range : trials.wanted(float(trial), top) / range;
        }
        choose_rounding();
    }

    template <int how>
    inline void sum_levels_by() {
        vf l_0{}, l_1{}, l2_0{}, l2_1{}, xl_0{}, xl_1{}, turn0{}, turn1{};
        const vf inverse0 = inverse[0], inverse1 = inverse[1], origin0 = origin[0], origin1 = origin[1];
#pragma GCC unroll 2
        for (int i = 0; i < n; ++i) {
            const vf x0 = x[i], x1 = x[n + i], above0 = x0 - origin0, above1 = x1 - origin1;
            const vf raised0 = raised_level<how, top>(inverse0 * above0);
            const vf raised1 = raised_level<how, top>(inverse1 * above1);
            const vf level0 = raised0 - kRounder, level1 = raised1 - kRounder;
            const vf weighted0 = w[i] * level0, weighted1 = w[n + i] * level1;
            levels[i] = level0, levels[n + i] = level1;
            l_0 += weighted0, l_1 += weighted1;
            l2_0 += weighted0 * level0, l2_1 += weighted1 * level1;
            xl_0 += weighted0 * x0, xl_1 += weighted1 * x1;
            if constexpr (kJumps) {
                turn0 = most(turn0, above0 * next_of_four(raised0));
                turn1 = most(turn1, above1 * next_of_four(raised1));
            }
        }
        l[0] = l_0, l[1] = l_1, l2[0] = l2_0, l2[1] = l2_1, xl[0] = xl_0, xl[1] = xl_1;
        if constexpr (kJumps) turn[0] = turn0, turn[1] = turn1;
    }

    void sum_levels() {
        switch (rounding) {
            case kPlain: return sum_levels_by<kPlain>();
            case kLow: return sum_levels_by<kLow>();
            case kHigh: return sum_levels_by<kHigh>();
            case kBoth: return sum_levels_by<kBoth>();
            default: return sum_levels_by<kWild>();
        }
    }

    void solve() {
        for (int g = 0; g < 2; ++g) {
            const vf determinant = weight[g] * l2[g] - l[g] * l[g];
            valid[g] = determinant > splat(0);
            scale[g] = (weight[g] * xl[g] - weighted_x[g] * l[g]) / determinant;
            minimum[g] = (l2[g] * weighted_x[g] - l[g] * xl[g]) / determinant;
            const vi above = minimum[g] > splat(0);
            if (any_of(above)) {
                scale[g] = choose(above, xl[g] / l2[g], scale[g]);
                minimum[g] = choose(above, splat(0), minimum[g]);
            }
        }
    }

    void sum_errors() {
        vf error0{}, error1{};
        const vf scale0 = scale[0], scale1 = scale[1], minimum0 = minimum[0], minimum1 = minimum[1];
#pragma GCC unroll 2
        for (int i = 0; i < n; ++i) {
            const vf off0 = scale0 * levels[i] + minimum0 - x[i];
            const vf off1 = scale1 * levels[n + i] + minimum1 - x[n + i];
            error0 += w[i] * (absolute ? magnitude(off0) : off0 * off0);
            error1 += w[n + i] * (absolute ? magnitude(off1) : off1 * off1);
        }
        now[0] = error0, now[1] = error1;
    }

    // Keeps the better solutions and goes on to the next trial.
    void keep_better() {
        vi busy{};
        for (int g = 0; g < 2; ++g) {
            vi better = valid[g] & (now[g] < error[g]);
            if constexpr (kJumps) {
                better &= own_trial[g] <= splat(float(trials.last));
                // A millionth and a hundredth of a trial are many times more than the roundings of this estimate.
                const vf wanted = (highest[g] - origin[g]) / turn[g] * (1 - 1e-6f);
                const vf change = (wanted - float(top) - trials.offset) * (1 / trials.step);
                const vf after = own_trial[g] + 1.0f;
                const vf jump = (least(change, splat(64)) + 0.48f + kRounder) - kRounder;
                own_trial[g] = rounding == kWild ? after : choose(better, after, most(jump, after));
                const vi over = own_trial[g] > splat(float(trials.last));
                busy |= ~over;
            }
            best[g].inverse = choose(better, inverse[g], best[g].inverse);
            best[g].origin = choose(better, origin[g], best[g].origin);
            best[g].scale = choose(better, scale[g], best[g].scale);
            error[g] = choose(better, now[g], error[g]);
            origin[g] = choose(better, minimum[g], origin[g]);
        }
        done = kJumps ? !any_of(busy) : ++trial > trials.last;
        if (!done) next_trial();
    }

    void finish() {
        for (int g = 0; g < 2; ++g) {
            best[g].minimum = origin[g];
            best[g].scale = choose(flat[g], splat(0), best[g].scale);
        }
    }
};

// 2 * kPairs vectors of sub-blocks.
template <int n, int top, bool absolute>
void search(const vf* x, const vf* w, const vf* weight, const Trials& trials, Fit* best) {
    Pair<n, top, absolute> pair[kPairs];
    for (int i = 0; i < kPairs; ++i) pair[i].start(x + 2 * i * n, w + 2 * i * n, weight + 2 * i, best + 2 * i, trials);
    auto& last = pair[kPairs - 1];
    for (bool first = true, busy = true; busy; first = false) {
        for (int i = 0; i < kPairs; ++i) {
            if (!pair[i].done) pair[i].sum_levels();
            if (i != 0) {
                if (!pair[i - 1].done) pair[i - 1].solve();
            } else if (!first && !last.done) {
                last.keep_better();
            }
        }
        for (int i = 0; i < kPairs; ++i) {
            if (!pair[i].done) pair[i].sum_errors();
            if (i == 0) {
                if (!last.done) last.solve();
            } else if (!pair[i - 1].done) {
                pair[i - 1].keep_better();
            }
        }
        busy = false;
        for (int i = 0; i < kPairs; ++i) busy |= !pair[i].done;
    }
    for (int i = 0; i < kPairs; ++i) pair[i].finish();
}

}  // namespace
}  // namespace tael
