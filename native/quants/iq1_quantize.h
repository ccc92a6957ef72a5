// SPDX-License-Identifier: Apache-2.0
// IQ1_S and IQ1_M: kLanes blocks of 256 at a time, one in each lane; sub-blocks of 32 or 16 one after the other.
#pragma once

#include "iq1_nearest.h"
#include "iq1_split.h"

namespace tael {
namespace {

// A sub-block of n elements: codes of its groups of eight, its scale (none or all zero where there is nothing).
template <int n>
struct Iq1Part {
    static constexpr int groups = n / 8;
    vf scale;
    vi codes[groups], minus[2];

    vi minus_of(int group) const { return minus[2 * group / groups]; }
    vf value(int group, vi level) const {
        return to_float(level - 1) + (minus_of(group) ? every(-kIq1Shift) : every(kIq1Shift));
    }

    void search(const vf* x, const vf* weight, float nothing, const Iq1Table& table) {
        vf most = every(0.0f);
        for (int i = 0; i < n; ++i) most = larger(magnitude(x[i]), most);
        vi rank[n];
        Iq1Split split;
        iq1_ranks<n>(x, rank);
        const vi empty = most < every(nothing);
        iq1_split(x, weight, rank, empty, split);
        const vi found = split.found & ~empty, negative = split.scale < every(0.0f);
        scale = found ? vf(vi(split.scale) ^ (negative & INT32_MIN)) : every(0.0f);
        for (int half = 0; half < 2; ++half) minus[half] = (split.minus[half] ^ negative) & found;
        for (int group = 0; group < groups; ++group) {
            vi code = {};
            for (int i = 7; i >= 0; --i) {
                const vi at = rank[8 * group + i], level = -(vi(at >= split.low) + vi(at >= split.high));
                code = code << 2 | (negative ? 2 - level : level);
            }
            codes[group] = code & found;
        }
        to_entries(x, weight, found, table);
    }

    // Points off the codebook go to an entry near to them, and the scale is fitted again.
    void to_entries(const vf* x, const vf* weight, vi found, const Iq1Table& table) {
        const auto* values = reinterpret_cast<const float*>(x);
        const auto* weights = reinterpret_cast<const float*>(weight);
        vi moved = {};
        for (int group = 0; group < groups; ++group) {
            const vi down = minus_of(group);
            for (int lane = 0; lane < kLanes; ++lane) {
                if (!found[lane]) continue;
                const Iq1Table::List& list = table.lists[iq1_lattice_point(uint32_t(codes[group][lane]))];
                if (list.chunks == 0) continue;
                const int at = 8 * group * kLanes + lane;
                const Iq1Errors errors(values + at, weights + at, scale[lane], kIq1Values[down[lane] & 1]);
                codes[group][lane] = int32_t(iq1_nearest(table.codes + list.first, list.chunks, errors));
                moved[lane] = -1;
            }
        }
        if (!some(moved)) return;
        vf products = every(0.0f), squares = products;
        add_sums(x, weight, every(1.0f), products, squares);
        const vi fits = moved & vi(products > every(0.0f)) & vi(squares > every(0.0f));
        scale = fits ? products / squares : scale;
    }

    void add_sums(const vf* x, const vf* weight, vf factor, vf& products, vf& squares) const {
        for (int i = 0; i < n; ++i) {
            const vf level = value(i / 8, codes[i / 8] >> (2 * (i % 8)) & 3) * factor, weighted = weight[i] * level;
            products += weighted * x[i];
            squares += weighted * level;
        }
    }
};

// Scales 1, 3 .. 15 in units of d, as 0..7.
inline vi iq1_level(vf scale, vf inverse) {
    return higher(lower(nearest(every(0.5f) * (inverse * scale - every(1.0f))), splat_i(7)), splat_i(0));
}

inline uint32_t iq1_number(const Iq1Table& table, int32_t code) {
    return table.lists[iq1_lattice_point(uint32_t(code))].number;
}

void quantize_iq1_s(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* importances) {
    constexpr int parts = 8;
    const Iq1Table& table = iq1_table();
    const size_t count = rows * (row_length / 256);
    for (size_t first = 0; first < count; first += kLanes) {
        const BlockLanes lanes(source, importances, 256, first, count, row_length);
        const size_t used = count - first < size_t(kLanes) ? count - first : kLanes;
        const vf sigma = every(2.0f) * lanes.squares(256) / every(256.0f);
        Iq1Part<32> part[parts];
        vf most = every(0.0f);
        for (int i = 0; i < parts; ++i) {
            vf x[32], weight[32];
            lanes.read_x(32 * size_t(i), 32, x);
            lanes.weigh(32 * size_t(i), 32, sigma, x, weight);
            part[i].search(x, weight, 1e-12f, table);
            most = larger(most, part[i].scale);
        }
        const vf d = most / every(15.0f), inverse = every(1.0f) / d;
        const vi any = most != every(0.0f);
        vi high[parts];
        for (int i = 0; i < parts; ++i)
            high[i] = (iq1_level(part[i].scale, inverse) << 12 | (part[i].minus[0] & 1 << 15)) & any;
        const vf written = any ? d * every(1.125f) : every(0.0f);
        for (size_t lane = 0; lane < used; ++lane, out += 50) {
            put_half(out, to_half(written[lane]));
            for (int i = 0; i < parts; ++i) {
                uint32_t word = uint32_t(high[i][lane]);
                for (int k = 0; k < 4; ++k) {
                    const uint32_t number = iq1_number(table, part[i].codes[k][lane]);
                    out[2 + 4 * i + k] = uint8_t(number);
                    word |= number >> 8 << (3 * k);
                }
                put_half(out + 34 + 2 * i, word);
            }
        }
    }
}

void quantize_iq1_m(const float* source, uint8_t* out, size_t rows, size_t row_length, const float* importances) {
    constexpr int parts = 16;
    const Iq1Table& table = iq1_table();
    const size_t count = rows * (row_length / 256);
    for (size_t first = 0; first < count; first += kLanes) {
        const BlockLanes lanes(source, importances, 256, first, count, row_length);
        const size_t used = count - first < size_t(kLanes) ? count - first : kLanes;
        const vf sigma = every(2.0f) * lanes.squares(256) / every(256.0f);
        Iq1Part<16> part[parts];
        vf x[256], weight[256], most = every(0.0f);
        lanes.read_x(0, 256, x);
        lanes.weigh(0, 256, sigma, x, weight);
        for (int i = 0; i < parts; ++i) {
            part[i].search(x + 16 * i, weight + 16 * i, 1e-7f, table);
            most = larger(most, part[i].scale);
        }
        vf d = most / every(15.0f), products = every(0.0f), squares = products;
        const vf inverse = every(1.0f) / d;
        const vi any = most != every(0.0f);
        vi levels[parts];
        for (int i = 0; i < parts; ++i) {
            levels[i] = iq1_level(part[i].scale, inverse) & any;
            part[i].add_sums(x + 16 * i, weight + 16 * i, to_float(2 * levels[i] + 1), products, squares);
        }
        d = squares > every(0.0f) ? products / squares : d;
        const vf written = any ? d * every(1.1125f) : every(0.0f);
        for (size_t lane = 0; lane < used; ++lane, out += 56) {
            uint32_t scales[4];
            const uint32_t half = to_half(written[lane]);
            for (int i = 0; i < 4; ++i) scales[i] = (half >> (4 * i) & 15) << 12;
            for (int i = 0; i < parts; ++i) {
                const Iq1Part<16>& p = part[i];
                const uint32_t numbers[2] = {iq1_number(table, p.codes[0][lane]), iq1_number(table, p.codes[1][lane])};
                const uint32_t shifts = uint32_t(any[lane] & ((p.minus[0][lane] & 0x08) | (p.minus[1][lane] & 0x80)));
                out[2 * i] = uint8_t(numbers[0]), out[2 * i + 1] = uint8_t(numbers[1]);
                out[32 + i] = uint8_t(numbers[0] >> 8 | numbers[1] >> 8 << 4 | shifts);
                scales[i / 4] |= uint32_t(levels[i][lane]) << (3 * (i % 4));
            }
            for (int i = 0; i < 4; ++i) put_half(out + 48 + 2 * i, scales[i]);
        }
    }
}

}  // namespace
}  // namespace tael
