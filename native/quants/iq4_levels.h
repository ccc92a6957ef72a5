// SPDX-License-Identifier: Apache-2.0
// The 16 levels of ggml's IQ4 types (data of ggml, MIT), and the level nearest to each lane of a vector.
#pragma once

#include "iq_lanes.h"

namespace tael {
namespace {

constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int kIq4Middle = 8;  // the level of zero

// Midpoints between neighbours. The reference compares the two rounded differences to the neighbours; they tell apart
// the midpoint, which belongs to the upper one, from the next float below. Both are monotonic, so nothing else counts.
constexpr float iq4_midpoint(int i) { return float(kIq4Levels[i] + kIq4Levels[i + 1]) * 0.5f; }

constexpr bool midpoints_decide() {
    for (int i = 0; i < 15; ++i) {
        const float low = kIq4Levels[i], high = kIq4Levels[i + 1], middle = iq4_midpoint(i);
        const auto bits = __builtin_bit_cast(uint32_t, middle);
        const float before = __builtin_bit_cast(float, middle > 0 ? bits - 1 : bits + 1);
        if (middle - low < high - middle || !(before - low < high - before)) return false;
    }
    return true;
}
static_assert(midpoints_decide());

// Of each level: its value, the midpoint towards the middle level, and the way from the level to its neighbour there.
struct Iq4Row {
    float value, edge, step, unused;
};
struct Iq4Rows {
    Iq4Row of[16];
};
constexpr Iq4Rows iq4_rows() {
    Iq4Rows rows{};
    for (int i = 0; i < 16; ++i) {
        const int next = i < kIq4Middle ? i + 1 : i > kIq4Middle ? i - 1 : i;
        rows.of[i].value = kIq4Levels[i];
        rows.of[i].step = float(kIq4Levels[next] - kIq4Levels[i]);
        rows.of[i].edge = next == i ? 0.0f : iq4_midpoint(i < next ? i : next);
    }
    return rows;
}
alignas(64) constexpr Iq4Rows kIq4Rows = iq4_rows();

// A search among the midpoints that never branches. NaN gets the last level, as by the reference.
#if defined(__AVX512F__)

class Iq4Place {
    __m512i index;

public:
    explicit Iq4Place(vf value) {
        const __m512 v = (__m512)value;
        const __m512 mids = _mm512_setr_ps(iq4_midpoint(0), iq4_midpoint(1), iq4_midpoint(2), iq4_midpoint(3),
                                           iq4_midpoint(4), iq4_midpoint(5), iq4_midpoint(6), iq4_midpoint(7),
                                           iq4_midpoint(8), iq4_midpoint(9), iq4_midpoint(10), iq4_midpoint(11),
                                           iq4_midpoint(12), iq4_midpoint(13), iq4_midpoint(14), 0.0f);
        __m512i at = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(v, _mm512_set1_ps(iq4_midpoint(7)), _CMP_NLT_UQ), 8);
        for (int step = 4; step != 0; step /= 2) {
            const __m512i where = _mm512_add_epi32(at, _mm512_set1_epi32(step - 1));
            const __mmask16 above = _mm512_cmp_ps_mask(v, _mm512_permutexvar_ps(where, mids), _CMP_NLT_UQ);
            at = _mm512_mask_add_epi32(at, above, at, _mm512_set1_epi32(step));
        }
        index = at;
    }
    vi number() const { return vi(index); }
    template <float Iq4Row::*member>
    vf get() const {
        constexpr auto& r = kIq4Rows.of;
        const __m512 table = _mm512_setr_ps(r[0].*member, r[1].*member, r[2].*member, r[3].*member, r[4].*member,
                                            r[5].*member, r[6].*member, r[7].*member, r[8].*member, r[9].*member,
                                            r[10].*member, r[11].*member, r[12].*member, r[13].*member,
                                            r[14].*member, r[15].*member);
        return vf(_mm512_permutexvar_ps(index, table));
    }
    void get_all(vf& value, vf& edge, vf& step) const {
        value = get<&Iq4Row::value>(), edge = get<&Iq4Row::edge>(), step = get<&Iq4Row::step>();
    }
};

#elif defined(__AVX2__)

// Masks are -1, so that what is found so far counts downwards: entry j of a table of n is the one for n - j, modulo n.
class Iq4Place {
    __m256i pair, odd;

public:
    explicit Iq4Place(vf value) {
        const __m256 v = (__m256)value;
        const auto at_least = [v](__m256 middle) { return _mm256_castps_si256(_mm256_cmp_ps(v, middle, _CMP_NLT_UQ)); };
        constexpr float a = iq4_midpoint(1), b = iq4_midpoint(5), c = iq4_midpoint(9), d = iq4_midpoint(13);
        constexpr float low = iq4_midpoint(3), high = iq4_midpoint(11);
        const __m256i half = at_least(_mm256_set1_ps(iq4_midpoint(7)));
        const __m256 of_half = _mm256_setr_ps(low, 0, 0, high, low, 0, 0, high);
        const __m256i second = at_least(_mm256_permutevar_ps(of_half, half));
        const __m256i quarter = _mm256_add_epi32(_mm256_add_epi32(half, half), second);
        const __m256i third = at_least(_mm256_permutevar_ps(_mm256_setr_ps(a, d, c, b, a, d, c, b), quarter));
        pair = _mm256_add_epi32(_mm256_add_epi32(quarter, quarter), third);
        const __m256 of_pair = _mm256_setr_ps(iq4_midpoint(0), iq4_midpoint(14), iq4_midpoint(12), iq4_midpoint(10),
                                              iq4_midpoint(8), iq4_midpoint(6), iq4_midpoint(4), iq4_midpoint(2));
        odd = at_least(_mm256_permutevar8x32_ps(of_pair, pair));
    }
    vi number() const { return -vi(_mm256_add_epi32(_mm256_add_epi32(pair, pair), odd)); }
    template <float Iq4Row::*member>
    vf get() const {
        constexpr auto& r = kIq4Rows.of;
        const __m256 even = _mm256_setr_ps(r[0].*member, r[14].*member, r[12].*member, r[10].*member, r[8].*member,
                                           r[6].*member, r[4].*member, r[2].*member);
        const __m256 more = _mm256_setr_ps(r[1].*member - r[0].*member, r[15].*member - r[14].*member,
                                           r[13].*member - r[12].*member, r[11].*member - r[10].*member,
                                           r[9].*member - r[8].*member, r[7].*member - r[6].*member,
                                           r[5].*member - r[4].*member, r[3].*member - r[2].*member);
        const __m256 added = _mm256_and_ps(_mm256_castsi256_ps(odd), _mm256_permutevar8x32_ps(more, pair));
        return vf(_mm256_add_ps(_mm256_permutevar8x32_ps(even, pair), added));  // exact: multiples of a half
    }
    void get_all(vf& value, vf& edge, vf& step) const {
        value = get<&Iq4Row::value>(), edge = get<&Iq4Row::edge>(), step = get<&Iq4Row::step>();
    }
};

#else

class Iq4Place {
    vi index;

public:
    explicit Iq4Place(vf value) {
        index = splat_i(15);
        for (int i = 0; i < 15; ++i) index += vi(value < every(iq4_midpoint(i)));
    }
    vi number() const { return index; }
    template <float Iq4Row::*member>
    vf get() const {
        vf out{};
        for (int lane = 0; lane < kLanes; ++lane) out[lane] = kIq4Rows.of[index[lane]].*member;
        return out;
    }
    void get_all(vf& value, vf& edge, vf& step) const {
        static_assert(kLanes == 4);
        quad row[4];
        for (int lane = 0; lane < 4; ++lane) memcpy(&row[lane], &kIq4Rows.of[index[lane]], sizeof(quad));
        turn(row);
        value = row[0], edge = row[1], step = row[2];
    }
};

#endif

}  // namespace
}  // namespace tael
