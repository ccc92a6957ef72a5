// SPDX-License-Identifier: Apache-2.0
// Q2_K, Q4_K and Q5_K from float32: a batch of kLanes super-blocks, one in each lane, up to the integers of the
// scales; the levels then block by block, in the order of memory.
#pragma once

#include "affine_blocks.h"
#include "affine_search.h"
#include "positive_scales.h"

namespace tael {
namespace {

constexpr Trials kWeightedTrials = {-0.9f, 0.05f, 36};

template <class Type>
struct Batch {
    static constexpr int count = Type::Scales::count;
    vf d, dmin;
    vi scales[count], minima[count];  // as bytes
    Fit fits[count];
};

inline vf square_root(vf value) {
    vf root = value;
    for (int lane = 0; lane < kLanes; ++lane) root[lane] = __builtin_sqrtf(value[lane]);
    return root;
}

template <class Type>
void batch_plain(const vf* x, Batch<Type>& batch) {
    constexpr int n = Type::Scales::size, count = Type::Scales::count, most = count == 8 ? 63 : 15;
    vf max_scale{}, max_minimum{};
    for (int j = 0; j < count; j += 2 * kPairs) {
        vf w[2 * kPairs * n], weight[2 * kPairs];
        for (int g = 0; g < 2 * kPairs; ++g) {
            const vf* from = x + (j + g) * n;
            vf* to = w + g * n;
            vf mean{}, sum{};
            if constexpr (!Type::absolute) {
                for (int i = 0; i < n; ++i) mean += from[i] * from[i];
                mean = square_root(mean / float(n));
            }
            for (int i = 0; i < n; ++i) {
                to[i] = Type::absolute ? magnitude(from[i]) : mean + magnitude(from[i]);
                sum += to[i];
            }
            weight[g] = sum;
        }
        search<n, Type::top, Type::absolute>(x + j * n, w, weight, Type::trials, batch.fits + j);
        for (int g = 0; g < 2 * kPairs; ++g) {
            max_scale = higher(batch.fits[j + g].scale, max_scale);
            max_minimum = higher(-batch.fits[j + g].minimum, max_minimum);
        }
    }
    const vf per_scale = choose(max_scale > splat(0), float(most) / max_scale, splat(0));
    const vf per_minimum = choose(max_minimum > splat(0), float(most) / max_minimum, splat(0));
    for (int j = 0; j < count; ++j) {
        batch.scales[j] = nearest(per_scale * batch.fits[j].scale) & 0xFF;
        batch.minima[j] = nearest(per_minimum * -batch.fits[j].minimum) & 0xFF;
        if constexpr (count == 8) {
            batch.scales[j] = lower(splat_i(most), batch.scales[j]);
            batch.minima[j] = lower(splat_i(most), batch.minima[j]);
        }
    }
    batch.d = max_scale / float(most), batch.dmin = max_minimum / float(most);
}

template <class Type>
void batch_weighted(const vf* x, const float* const* importances, Batch<Type>& batch) {
    constexpr int n = Type::Scales::size, count = Type::Scales::count, most = count == 8 ? 63 : 15;
    vf variance{}, scales[count], minima[count], weight[count];
    for (int i = 0; i < kSuper; ++i) variance += x[i] * x[i];
    variance = (count == 8 ? 2.0f * variance : variance) / float(kSuper);
    for (int j = 0; j < count; j += 2 * kPairs) {
        vf w[2 * kPairs * n];
        const float* from[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) from[lane] = importances[lane] + j * n;
        spread(from, 2 * kPairs * n, w);
        for (int g = 0; g < 2 * kPairs; ++g) {
            vf sum{};
            for (int i = g * n; i < g * n + n; ++i) {
                w[i] *= square_root(variance + x[j * n + i] * x[j * n + i]);
                sum += w[i];
            }
            weight[j + g] = sum;
        }
        search<n, Type::top, false>(x + j * n, w, weight + j, kWeightedTrials, batch.fits + j);
        for (int g = 0; g < 2 * kPairs; ++g) {
            scales[j + g] = batch.fits[j + g].scale;
            minima[j + g] = -batch.fits[j + g].minimum;
        }
    }
    batch.d = positive_scale<count, most>(scales, weight, batch.scales);
    batch.dmin = positive_scale<count, most>(minima, weight, batch.minima);
    if constexpr (Type::clamp_scales) {
        for (int j = 0; j < count; ++j) {
            batch.scales[j] = lower(splat_i(most), batch.scales[j]);
            batch.minima[j] = lower(splat_i(most), batch.minima[j]);
        }
    }
}

// Levels of one block with the scales as they are stored.
template <class Type>
void put_block(const float* x, const Batch<Type>& batch, int lane, uint8_t* out) {
    constexpr int n = Type::Scales::size, count = Type::Scales::count;
    uint8_t scales[count], minima[count], levels[kSuper];
    for (int j = 0; j < count; ++j) {
        scales[j] = uint8_t(batch.scales[j][lane]);
        minima[j] = uint8_t(batch.minima[j][lane]);
    }
    Type::Scales::put(out + Type::scales, scales, minima);
    Type::Scales::get(out + Type::scales, scales, minima);
    put_half(out + Type::half, batch.d[lane]);
    put_half(out + Type::half + 2, batch.dmin[lane]);
    const float d = half_at(out + Type::half), dmin = half_at(out + Type::half + 2);
    for (int at = 0; at < kSuper; at += 32) {
        vi rounded[32 / kLanes];
        for (int i = 0; i < 32 / kLanes; ++i) {
            const int j = (at + i * kLanes) / n;
            const vf value = load(x + at + i * kLanes) + dmin * float(minima[j]);
            rounded[i] = nearest(value / (d * float(scales[j])));
        }
        put_clamped(rounded, Type::top, levels + at);
    }
    for (int j = 0; j < count; ++j) {
        if (d * float(scales[j]) != 0) continue;  // without a scale, the levels of the search stay
        const float inverse = batch.fits[j].inverse[lane], origin = batch.fits[j].origin[lane];
        for (int i = j * n; i < j * n + n; ++i) {
            const int32_t level = nearest(inverse * (x[i] - origin));
            levels[i] = uint8_t(level < 0 ? 0 : level > Type::top ? Type::top : level);
        }
    }
    Type::put(out, levels);
}

template <class Type>
void quantize_affine(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* weights) {
    const size_t in_row = row_length / kSuper, blocks = rows * in_row;
    for (size_t at = 0; at < blocks; at += kLanes) {
        const float *from[kLanes], *importances[kLanes];
        const int used = int(blocks - at < kLanes ? blocks - at : kLanes);
        for (int lane = 0; lane < kLanes; ++lane) {  // a short batch repeats its last block
            const size_t block = at + size_t(lane < used ? lane : used - 1);
            from[lane] = source + block * kSuper;
            importances[lane] = weights ? weights + block % in_row * kSuper : nullptr;
        }
        vf x[kSuper];
        spread(from, kSuper, x);
        Batch<Type> batch;
        if (weights)
            batch_weighted<Type>(x, importances, batch);
        else
            batch_plain<Type>(x, batch);
        for (int lane = 0; lane < used; ++lane)
            put_block<Type>(from[lane], batch, lane, out + (at + size_t(lane)) * Type::bytes);
    }
}

}  // namespace
}  // namespace tael
