// SPDX-License-Identifier: Apache-2.0
// Three levels for the elements of a sub-block, for IQ1_S and IQ1_M: sorted by value, the first get level 0, the last
// level 2, those between level 1. All pairs of bounds are tried, with the levels' values shifted up or down. One
// sub-block in each lane; every sum in the order of the reference.
#pragma once

#include <float.h>

#include "iq1_table.h"
#include "iq_lanes.h"

namespace tael {
namespace {

// Places of n elements in ascending order, equal ones as they come (glibc's qsort, a merge sort, keeps their order).
template <int n>
inline void iq1_ranks(const vf* x, vi (&rank)[n]) {
    for (int i = 0; i < n; ++i) {
        vi own = splat_i(n - 1 - i);
        for (int j = 0; j < i; ++j) {
            const vi before = x[j] <= x[i];
            own -= before;
            rank[j] += before;
        }
        rank[i] = own;
    }
}

// What scores best so far. Elements of rank below `low` get level 0, from `high` on level 2.
struct Iq1Split {
    vf scale, best;
    vi low, high, found, minus[2];  // minus: of each half, whether its values are shifted down

    void begin() {
        scale = every(0.0f), best = every(-FLT_MAX);
        low = high = found = minus[0] = minus[1] = vi{};
    }
    vi beaten_by(vf products, vf squares) const { return products * products > best * squares; }
    void take(vf products, vf squares, int from, int to, bool minus_first, bool minus_second) {
        const vi better = beaten_by(products, squares) & vi(squares > every(0.0f));
        const vf ratio = products / squares;
        scale = better ? ratio : scale;
        best = better ? ratio * products : best;
        low = better ? splat_i(from) : low;
        high = better ? splat_i(to) : high;
        minus[0] = better ? splat_i(-int(minus_first)) : minus[0];
        minus[1] = better ? splat_i(-int(minus_second)) : minus[1];
        found |= better;
    }
};

constexpr float kPlus0 = kIq1Values[0][0], kPlus1 = kIq1Values[0][1], kPlus2 = kIq1Values[0][2];
constexpr float kMinus0 = kIq1Values[1][0], kMinus2 = kIq1Values[1][2];
static_assert(kIq1Values[1][1] == -kPlus1);

// IQ1_S: 32 elements, one shift; sums of ranges are differences of running sums.
constexpr int kIq1Ahead = 3;  // four pairs are looked at together

struct Iq1Running {
    vf products[33 + kIq1Ahead], squares[33 + kIq1Ahead];  // the last again at the end

    void sum(const vf* x, const vf* weight, const vi (&rank)[32]) {
        float product[32][kLanes], sorted[32][kLanes];
        for (int i = 0; i < 32; ++i) {
            const vf own = weight[i] * x[i];
            for (int lane = 0; lane < kLanes; ++lane) {
                product[rank[i][lane]][lane] = own[lane];
                sorted[rank[i][lane]][lane] = weight[i][lane];
            }
        }
        products[0] = squares[0] = every(0.0f);
        for (int i = 0; i < 32; ++i) {
            products[i + 1] = products[i] + load(product[i]);
            squares[i + 1] = squares[i] + load(sorted[i]);
        }
        for (int i = 33; i < 33 + kIq1Ahead; ++i) products[i] = products[32], squares[i] = squares[32];
    }
};

// Most pairs of bounds are far from the best, and a rough score tells that they cannot matter. In exact arithmetic a
// pair's sum of products is a number of the first bound less a running sum at the second, and its sum of squares
// likewise: two subtractions. E and F bound, generously, what rounding makes of both ways to compute the sums.
//
// Left out are pairs whose score is below the best known one by a part of kIq1Margin. Each comparison of the reference
// errs by less than 2.4e-7. Among 1122 scores within 5.4e-4 of the greatest there is a gap of twice that; so the first
// pair above the gap replaces whatever came before, and none below replaces it. What is left out is below the gap.
constexpr float kIq1Margin = 1e-3f, kIq1Least = (1 - kIq1Margin) / 1.0011f;

struct Iq1Bound {
    const Iq1Running& run;
    vf e, f, threshold, shifted, all;
    vi tame;
    vf steep[33 + kIq1Ahead], flat[33 + kIq1Ahead];  // the squares times 1.25 and 0.75
    struct Row {
        vf products[2], squares[2];
    };

    explicit Iq1Bound(const Iq1Running& running, vi nothing) : run(running) {
        vf most = every(0.0f);
        for (int i = 0; i < 33 + kIq1Ahead; ++i) {
            most = larger(magnitude(run.products[i]), most);
            steep[i] = run.squares[i] * every(1 + 2 * kIq1Shift), flat[i] = run.squares[i] * every(1 - 2 * kIq1Shift);
        }
        all = run.squares[32], e = every(4e-6f) * most, f = every(4e-6f) * all;
        shifted = run.products[32] * every(kIq1Shift);
        threshold = every(0.0f);
        for (int i = 0; i <= 32; i += kSample) {
            const Row here = row(i);
            for (int j = i; j <= 32; j += kSample) {
                const vf squares[2] = {here.squares[0] - steep[j] + (f + f), here.squares[1] - flat[j] + (f + f)};
                for (int s = 0; s < 2; ++s) {
                    const vf products = larger(magnitude(here.products[s] - run.products[j]) - e, every(0.0f));
                    threshold = larger(products * products / squares[s], threshold);
                }
            }
        }
        const vf scaled = threshold * all;
        tame = within(most, 1e-15f) & within(all, 1e-25f) & within(threshold, 1e-30f) & within(scaled, 1e-30f);
        // (|u| + E)^2 <= 1.001 u^2 + 1001 E^2; so E becomes part of F. Lanes of nothing never matter, wild ones always.
        f += every(1001.0f) * e * e / threshold;
        f = tame | nothing ? f : every(__builtin_inff());
        threshold = tame ? threshold * every(kIq1Least) : every(1.0f);
        threshold = nothing ? every(__builtin_inff()) : threshold;
    }
    static constexpr int kSample = 4;
    static vi within(vf value, float least) { return vi(value > every(least)) & vi(value < every(1e15f)); }

    Row row(int i) const {
        const vf rest = run.products[32] - run.products[i];
        constexpr float up = 1 + kIq1Shift, down = 1 - kIq1Shift;
        return {{rest + shifted, rest - shifted},
                {flat[i] + all * every(up * up) - f, steep[i] + all * every(down * down) - f}};
    }
    template <int n>
    bool matters(const Row& row, int j) const {
        vi mask = {};
#pragma GCC unroll 4
        for (int k = j; k < j + n; ++k) {
            const vf plus = row.products[0] - run.products[k], minus = row.products[1] - run.products[k];
            mask |= vi(plus * plus > threshold * (row.squares[0] - steep[k]));
            mask |= vi(minus * minus > threshold * (row.squares[1] - flat[k]));
        }
        return some(mask);
    }
    void raise(vf best) { threshold = tame ? larger(best * every(kIq1Least), threshold) : threshold; }
};

inline void iq1_split(const vf* x, const vf* weight, const vi (&rank)[32], vi nothing, Iq1Split& split) {
    Iq1Running run;
    run.sum(x, weight, rank);
    Iq1Bound bound(run, nothing);
    split.begin();
    const vf *p = run.products, *q = run.squares;
    for (int i = 0; i <= 32; ++i) {
        const Iq1Bound::Row row = bound.row(i);
        for (int first = i; first <= 32; first += 1 + kIq1Ahead) {
            if (!bound.matters<1 + kIq1Ahead>(row, first)) continue;
            for (int j = first; j <= 32 && j <= first + kIq1Ahead; ++j) {
                if (!bound.matters<1>(row, j)) continue;
                const vf middle = (p[j] - p[i]) * every(kPlus1), top = p[32] - p[j];
                const vf middle2 = (q[j] - q[i]) * every(kPlus1) * every(kPlus1), top2 = q[32] - q[j];
                const vf plus = p[i] * every(kPlus0) + middle + top * every(kPlus2);
                const vf plus2 = q[i] * every(kPlus0) * every(kPlus0) + middle2 + top2 * every(kPlus2) * every(kPlus2);
                const vf minus = p[i] * every(kMinus0) - middle + top * every(kMinus2);
                const vf minus2 = q[i] * every(kMinus0) * every(kMinus0) + middle2 +
                                  top2 * every(kMinus2) * every(kMinus2);
                split.take(plus, plus2, i, j, false, false);
                split.take(minus, minus2, i, j, true, true);
                bound.raise(split.best);
            }
        }
    }
}

// IQ1_M: 16 elements, a shift for each half; the four combinations side by side, summed in sorted order.
struct Iq1Terms {
    vf products[4], squares[4];

    void operator+=(const Iq1Terms& more) {
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) products[k] += more.products[k], squares[k] += more.squares[k];
    }
};

inline void iq1_split(const vf* x, const vf* weight, const vi (&rank)[16], vi, Iq1Split& split) {
    float sorted_x[16][kLanes], sorted_weight[16][kLanes];
    int32_t sorted_half[16][kLanes];
    for (int i = 0; i < 16; ++i) {
        for (int lane = 0; lane < kLanes; ++lane) {
            const int32_t at = rank[i][lane];
            sorted_x[at][lane] = x[i][lane], sorted_weight[at][lane] = weight[i][lane];
            sorted_half[at][lane] = -(i >= 8);
        }
    }
    Iq1Terms terms[3][16];
    for (int level = 0; level < 3; ++level) {
        for (int i = 0; i < 16; ++i) {
            const vi half = read<vi>(sorted_half[i]);
            vf product[2], square[2];
            for (int s = 0; s < 2; ++s) {
                const vf value = every(kIq1Values[s][level]), weighted = load(sorted_weight[i]) * value;
                product[s] = weighted * load(sorted_x[i]), square[s] = weighted * value;
            }
            Iq1Terms& t = terms[level][i];
            t.products[0] = product[0], t.squares[0] = square[0];
            t.products[1] = half ? product[1] : product[0], t.squares[1] = half ? square[1] : square[0];
            t.products[2] = half ? product[0] : product[1], t.squares[2] = half ? square[0] : square[1];
            t.products[3] = product[1], t.squares[3] = square[1];
        }
    }
    split.begin();
    Iq1Terms low{};
    for (int i = 0; i <= 16; ++i) {
        Iq1Terms middle = low;
        for (int j = i; j <= 16; ++j) {
            Iq1Terms all = middle;
            for (int at = j; at < 16; ++at) all += terms[2][at];
            vi better = {};
            for (int k = 0; k < 4; ++k) better |= split.beaten_by(all.products[k], all.squares[k]);
            if (some(better))
                for (int k = 0; k < 4; ++k) split.take(all.products[k], all.squares[k], i, j, k >= 2, k % 2 != 0);
            if (j < 16) middle += terms[1][j];
        }
        if (i < 16) low += terms[0][i];
    }
}

}  // namespace
}  // namespace tael
