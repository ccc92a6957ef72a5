// SPDX-License-Identifier: Apache-2.0
// The scale of a group of sixteen for codes in [-reach, reach - 1]: nineteen trial scales around -reach / max, the one
// whose codes leave the least weighted error wins; the first of equals. ggml's make_qx_quants with rmse_type 1.
//
// Every lane does what the reference does, in its order. Left out is what can't change a bit: holding a code inside
// the range when the trial scale can't bring it outside (|x| <= |max|). That holds for finite x only: `any_value` is
// the search as it stands, where an infinity or NaN among x gets the code that the reference happens to give it.
#pragma once

#include "symmetric_lanes.h"

namespace tael {
namespace {

constexpr float kAdder = 12582912.0f;  // 1.5 * 2^23: adding rounds to an integer, subtracting gives it back

struct Fit {
    vf scale;    // 0 for zero groups
    vf inverse;  // of the winner: codes are nearest(inverse * x)
    vi zero;     // groups of (nearly) zeros: all codes are 0, which is not the middle
};

// Codes outside the range: at the bottom beyond reach + 0.5 steps, at the top from reach - 0.5 steps (ties are even).
template <int reach, bool bottom, bool top, bool any_value = false>
inline vf rounded(vf scaled) {
    if constexpr (any_value) return to_float(held<reach>(nearest(scaled)));
    vf l = (scaled + kAdder) - kAdder;
    if constexpr (top) l = least(l, spread(reach - 1));
    if constexpr (bottom) l = greatest(l, spread(-reach));
    return l;
}

// The largest magnitude; in `max` the first element that has it.
template <bool any_value = false>
inline vf extreme(const vf* x, vf& max) {
    if constexpr (any_value) {
        vf size = max = vf{};
        for (int i = 0; i < kSub; ++i) {
            const vi more = magnitude(x[i]) > size;
            size = choose(more, magnitude(x[i]), size), max = choose(more, x[i], max);
        }
        return size;
    }
    vf top = x[0], bottom = x[0];
    for (int i = 1; i < kSub; ++i) top = greatest(x[i], top), bottom = least(x[i], bottom);
    max = choose(top > -bottom, top, bottom);
    const vf most = magnitude(max);
    if (some((top == -bottom) & (top != 0.0f))) {  // both signs: which comes first?
        vi found = {};
        for (int i = 0; i < kSub; ++i) {
            const vi here = (magnitude(x[i]) == most) & ~found;
            max = choose(here, x[i], max), found |= here;
        }
    }
    return most;
}

struct Sums {
    vf lx, l2;
};

inline void accept(const Sums& sums, vf trial, Fit& fit, vf& best) {
    const vi wins = (sums.l2 > 0.0f) & (sums.lx * sums.lx > best * sums.l2);
    const vf scale = sums.lx / sums.l2;
    fit.scale = choose(wins, scale, fit.scale);
    fit.inverse = choose(wins, trial, fit.inverse);
    best = choose(wins, scale * sums.lx, best);
}

// Two trials at once: two more chains of additions, the same loads.
template <int reach, bool any_value, bool bottom, bool top>
inline void try_two(const vf* x, const vf* w, const vf* wx, vf max, float first, float second, Fit& fit, vf& best) {
    const vf one = -first / max, two = -second / max;
    Sums a = {}, b = {};
#pragma GCC unroll 4
    for (int i = 0; i < kSub; ++i) {
        const vf l = rounded<reach, bottom, top, any_value>(one * x[i]);
        const vf m = rounded<reach, bottom, top, any_value>(two * x[i]);
        a.lx += wx[i] * l, b.lx += wx[i] * m;
        a.l2 += w[i] * l * l, b.l2 += w[i] * m * m;
    }
    accept(a, one, fit, best);
    accept(b, two, fit, best);
}

// wx: the rounded products w * x.
template <int reach, bool any_value = false>
inline Fit search(const vf* x, const vf* w, const vf* wx) {
    vf max;
    Fit fit;
    fit.zero = extreme<any_value>(x, max) < kTiniest;
    fit.inverse = spread(-reach) / max;
    Sums sums = {};
    for (int i = 0; i < kSub; ++i) {
        const vf l = rounded<reach, false, true, any_value>(fit.inverse * x[i]);
        sums.lx += wx[i] * l;
        sums.l2 += w[i] * l * l;
    }
    fit.scale = choose(sums.l2 != 0.0f, sums.lx / sums.l2, vf{});
    vf best = fit.scale * sums.lx;
    constexpr float at = reach;
    const auto step = [](int k) { return at + 0.1f * float(k); };
    for (int k = -9; k < -5; k += 2)
        try_two<reach, any_value, false, false>(x, w, wx, max, step(k), step(k + 1), fit, best);
    for (int k = -5; k < -1; k += 2)
        try_two<reach, any_value, false, true>(x, w, wx, max, step(k), step(k + 1), fit, best);
    try_two<reach, any_value, false, true>(x, w, wx, max, step(-1), step(1), fit, best);
    try_two<reach, any_value, false, true>(x, w, wx, max, step(2), step(3), fit, best);
    for (int k = 4; k < 9; k += 2)
        try_two<reach, any_value, true, true>(x, w, wx, max, step(k), step(k + 1), fit, best);
    fit.scale = choose(fit.zero, vf{}, fit.scale);
    return fit;
}

// The codes of one group by its winner, plus reach; 0 for a zero group.
template <int reach>
inline void winning_codes(float inverse, bool zero, const float* x, int8_t* code) {
    for (int i = 0; i < kSub; ++i) {
        int32_t l = nearest(inverse * x[i]);
        l = l < reach - 1 ? l : reach - 1;
        l = l > -reach ? l : -reach;
        code[i] = zero ? int8_t(0) : int8_t(l + reach);
    }
}

}  // namespace
}  // namespace tael
