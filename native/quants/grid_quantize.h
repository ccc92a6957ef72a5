// SPDX-License-Identifier: Apache-2.0
// Quantizes to the IQ2 and IQ3 types: each sub-block tries scales around its maximum, each trial takes the nearest
// entry of the codebook for each group, and the best weighted fit stays. One sub-block in each lane.
#pragma once

#include "affine_lanes.h"
#include "grid_runs.h"
#include "grid_types.h"
#include "positive_scales.h"

namespace tael {
namespace {

// kLanes sub-blocks.
template <class Type>
struct GridBatch {
    using Book = typename Type::Book;
    static constexpr int sub = Type::sub, dims = Book::dims, groups = sub / dims;
    static constexpr float top = 2 * Book::levels - 1;

    vf x[sub];       // magnitudes; with even signs the least of eight values may be negative
    vf w[sub];       // weights
    vf root[sub];    // their square roots, which weigh the distances to entries
    vf wx[sub];      // w * x
    vi signs[sub / 8];
    vi codes[groups];  // of the best trial; with kLooked
    vi empty;
    vf scale;

    void load(const float* const* source, const float* const* weights, const float* sigma);
    void take_signs();
    vi round(vf inverse, int k) const;
    template <int trials>
    void fit(const vi (*found)[groups], vf* qx, vf* q2) const;
    void search(const NearTable<Book>& table);
    void search_again(const NearTable<Book>& table);
};

template <class Type>
void GridBatch<Type>::load(const float* const* source, const float* const* weights, const float* sigma) {
    alignas(64) float turned[3][sub][kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
        const float* from = source[lane];
        const float mean = sigma[lane];
        float weight[sub], rooted[sub];
        if (weights) {
            const float* importance = weights[lane];
            for (int i = 0; i < sub; ++i) weight[i] = importance[i] * __builtin_sqrtf(mean + from[i] * from[i]);
        } else if (Type::plain_weights == Weigh::kQuarter) {
            for (int i = 0; i < sub; ++i) weight[i] = 0.25f * mean + from[i] * from[i];
        } else {
            for (int i = 0; i < sub; ++i) weight[i] = from[i] * from[i];
        }
        for (int i = 0; i < sub; ++i) rooted[i] = __builtin_sqrtf(weight[i]);
        for (int i = 0; i < sub; ++i) {
            turned[0][i][lane] = from[i];
            turned[1][i][lane] = weight[i];
            turned[2][i][lane] = rooted[i];
        }
    }
    for (int i = 0; i < sub; ++i) {
        x[i] = tael::load(turned[0][i]);
        w[i] = tael::load(turned[1][i]);
        root[i] = tael::load(turned[2][i]);
    }
}

template <class Type>
void GridBatch<Type>::take_signs() {
    for (int k = 0; k < sub / 8; ++k) {
        vf* value = x + 8 * k;
        const vf* weight = w + 8 * k;
        vi sign{}, odd{};
        vf least_cost{};
        vi least_at{};
        for (int i = 0; i < 8; ++i) {
            const vi negative = value[i] < splat(0);
            if (Type::even_signs) {
                const vf cost = weight[i] * value[i] * value[i];
                const vi less = i == 0 ? ~vi{} : vi(cost < least_cost);
                least_cost = choose(less, cost, least_cost);
                least_at = choose(less, splat_i(i), least_at);
                odd ^= negative;
            }
            sign |= negative & (1 << i);
            value[i] = choose(negative, -value[i], value[i]);
        }
        if (Type::even_signs) {
            for (int i = 0; i < 8; ++i) {
                const vi flip = odd & (least_at == splat_i(i));
                value[i] = choose(flip, -value[i], value[i]);
                sign ^= flip & (1 << i);
            }
            sign &= 0x7F;
        }
        signs[k] = sign;
    }
}

// The lattice points of group k.
template <class Type>
vi GridBatch<Type>::round(vf inverse, int k) const {
    vi point{};
    for (int i = 0; i < dims; ++i) {
        vi level = nearest(0.5f * (inverse * x[dims * k + i] - 1.0f));
        level = higher(splat_i(0), lower(splat_i(Book::levels - 1), level));
        point = (Book::levels == 3 ? point + point + point : point << 3) + level;
    }
    return point;
}

template <class Type>
template <int trials>
void GridBatch<Type>::fit(const vi (*found)[groups], vf* qx, vf* q2) const {
    for (int t = 0; t < trials; ++t) qx[t] = q2[t] = vf{};
    for (int k = 0; k < groups; ++k) {
        for (int i = 0; i < dims; ++i) {
            const vf product = wx[dims * k + i], weight = w[dims * k + i];
            for (int t = 0; t < trials; ++t) {
                const vf odd = odd_level<Book>(found[t][k], i);
                qx[t] += product * odd;
                q2[t] += weight * odd * odd;
            }
        }
    }
}

template <class Type>
void GridBatch<Type>::search(const NearTable<Book>& table) {
    constexpr int trials = 2 * Type::tries + 1;
    vf largest = x[0];
    for (int i = 1; i < sub; ++i) largest = higher(largest, x[i]);
    empty = largest < splat(Type::nothing);
    largest = choose(empty, splat(1), largest);
    vf unit = largest;
    scale = largest / top;
    for (int i = 0; i < sub; ++i) wx[i] = w[i] * x[i];
    if constexpr (Type::starts_fitted) {
        vi unused[sub];
        scale = positive_scale<sub, Book::levels + 1>(x, w, unused);
        unit = scale * float(Book::levels);
        empty |= ~(unit > splat(0));
        unit = choose(empty, splat(1), unit);
    }
    constexpr int32_t start = int32_t(Book::zero_code) | (Type::starts_on_grid ? 0 : kLooked);
    for (int k = 0; k < groups; ++k) codes[k] = splat_i(start);
    vf inverses[trials], steps[trials];
    for (int t = 0; t < trials; ++t) {
        inverses[t] = (top + float(t - Type::tries) * Type::step) / unit;
        steps[t] = 1.0f / inverses[t];
    }
    alignas(64) float scales[kLanes][trials + kBeyond] = {};
    for (int t = 0; t < trials; ++t)
        for (int lane = 0; lane < kLanes; ++lane) scales[lane][t] = steps[t][lane];
    vi found[trials][groups];
    for (int k = 0; k < groups; ++k) {
        vi points[trials], changes{};
        for (int t = 0; t < trials; ++t) {
            points[t] = round(inverses[t], k);
            if (t > 0) changes |= (points[t] != points[t - 1]) & (1 << t);
        }
        alignas(64) int32_t row[kLanes][trials + kBeyond];
        for (int lane = 0; lane < kLanes; ++lane) {
            if (empty[lane]) {
                memset(row[lane], 0, sizeof row[lane]);
                continue;
            }
            GridGroup<Book> group(x + dims * k, root + dims * k, lane);
            group.prepare(scales[lane][trials - 1], scales[lane][0]);
            uint32_t ends = uint32_t(changes[lane]) | 1u << trials;
            for (int from = 0; from < trials; ends &= ends - 1) {
                const int to = __builtin_ctz(ends);
                search_run(table, group, points[from][lane], scales[lane], from, to, row[lane]);
                from = to;
            }
        }
        for (int t = 0; t < trials; ++t)
            for (int lane = 0; lane < kLanes; ++lane) found[t][k][lane] = row[lane][t];
    }
    vf best{}, qx[2], q2[2];
    for (int t = 0; t < trials; ++t) {
        if (t + 1 == trials) fit<1>(found + t, qx + t % 2, q2 + t % 2);
        else if (t % 2 == 0) fit<2>(found + t, qx, q2);
        const vf product = qx[t % 2], square = q2[t % 2];
        const vi better = (square > splat(0)) & (product * product > best * square);
        const vf fitted = product / square;
        scale = choose(better, fitted, scale);
        best = choose(better, fitted * product, best);
        for (int k = 0; k < groups; ++k) codes[k] = choose(better, found[t][k], codes[k]);
    }
}

// Groups that were not on the grid are searched once more with the scale found, and the scale is fitted again.
template <class Type>
void GridBatch<Type>::search_again(const NearTable<Book>& table) {
    vi looked{};
    for (int k = 0; k < groups; ++k) looked |= codes[k];
    vi again = (scale > splat(0)) & ~empty;
    if (!(Type::searches_whole && Type::starts_fitted)) again &= (looked & kLooked) != splat_i(0);
    if (any(again)) {
        const vf inverse = 1.0f / scale;
        for (int k = 0; k < groups; ++k) {
            const vi points = round(inverse, k);
            for (int lane = 0; lane < kLanes; ++lane) {
                if (!again[lane] || (!Type::searches_whole && !(codes[k][lane] & kLooked))) continue;
                const GridGroup<Book> group(x + dims * k, root + dims * k, lane);
                codes[k][lane] = search_one(table, group, points[lane], scale[lane]);
            }
        }
        vf qx, q2;
        fit<1>(&codes, &qx, &q2);
        scale = choose(again & (q2 > splat(0)), qx / q2, scale);
    }
    const vi negative = scale < splat(0);
    scale = choose(negative, -scale, scale);
    scale = choose(empty, splat(0), scale);
    for (int k = 0; k < sub / 8; ++k)
        signs[k] = (signs[k] ^ (negative & (Type::even_signs ? 0x7F : 0xFF))) & ~empty;
}

// Up to kLanes blocks of 256: the mean squares, each in the order of its values.
inline void mean_squares(const float* source, size_t blocks, int factor, float* out) {
    vf total{};
    for (int i = 0; i < 256; ++i) {
        vf value;
        for (size_t lane = 0; lane < size_t(kLanes); ++lane)
            value[lane] = source[256 * (lane < blocks ? lane : blocks - 1) + size_t(i)];
        total += value * value;
    }
    store(out, float(factor) * total / 256.0f);
}

template <class Type>
void finish_block(uint8_t* out, Found& found, const float* scales) {
    constexpr int parts = 256 / Type::sub;
    float most = 0;
    for (int i = 0; i < parts; ++i) most = most > scales[i] ? most : scales[i];
    memset(out, 0, size_t(Type::bytes));
    memset(found.scales, 0, sizeof found.scales);
    if (!(most > 0)) {
        if (!Type::even_signs) Type::pack(out, found);
        return;
    }
    const float unit = most / 31.0f, inverse = 1.0f / unit;
    for (int i = 0; i < parts; ++i) {
        const int32_t level = nearest(0.5f * (inverse * scales[i] - 1.0f));
        found.scales[i] = uint8_t(level < 0 ? 0 : level > 15 ? 15 : level);
    }
    Type::pack(out, found);
    put_f16(out, Type::fudge == 1.0f ? unit : unit * Type::fudge);
}

template <class Type>
void quantize_grid(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* weights) {
    using Book = typename Type::Book;
    using Batch = GridBatch<Type>;
    constexpr size_t sub = Type::sub, parts = 256 / sub, lanes = kLanes;
    constexpr size_t at_once = lanes > parts ? lanes / parts : 1;  // blocks searched together
    const NearTable<Book>& table = near_table<Book>();
    const size_t blocks = rows * (row_length / 256);
    alignas(64) float sigma[kLanes];
    for (size_t block = 0; block < blocks; block += at_once) {
        if (block % lanes == 0)
            mean_squares(source + 256 * block, blocks - block < lanes ? blocks - block : lanes, Type::sigma, sigma);
        const size_t count = blocks - block < at_once ? blocks - block : at_once;
        Found found[at_once];
        float scales[at_once * parts];
        for (size_t first = 0; first < count * parts; first += lanes) {
            Batch batch;
            const float *from[kLanes], *importance[kLanes];
            float means[kLanes];
            for (size_t lane = 0; lane < lanes; ++lane) {
                const size_t part = first + lane < count * parts ? first + lane : count * parts - 1;
                const size_t at = 256 * block + sub * part;
                from[lane] = source + at;
                importance[lane] = weights ? weights + at % row_length : nullptr;
                means[lane] = sigma[(block + part / parts) % lanes];
            }
            batch.load(from, weights ? importance : nullptr, means);
            batch.take_signs();
            batch.search(table);
            batch.search_again(table);
            for (size_t lane = 0; lane < lanes && first + lane < count * parts; ++lane) {
                const size_t part = first + lane, inside = part % parts;
                Found& here = found[part / parts];
                scales[part] = batch.scale[lane];
                here.empty[inside] = batch.empty[lane] != 0;
                for (size_t k = 0; k < size_t(Batch::groups); ++k) {
                    const auto code = batch.empty[lane] ? 0u : uint32_t(batch.codes[k][lane]);
                    uint32_t point = 0;
                    for (int i = 0; i < Book::dims; ++i) point = point * Book::levels + Book::level_in(code, i);
                    here.entries[inside * Batch::groups + k] = table.numbers[point];
                }
                for (size_t k = 0; k < sub / 8; ++k) here.signs[inside * (sub / 8) + k] = uint8_t(batch.signs[k][lane]);
            }
        }
        for (size_t i = 0; i < count; ++i)
            finish_block<Type>(out + (block + i) * size_t(Type::bytes), found[i], scales + i * parts);
    }
}

}  // namespace
}  // namespace tael
