// SPDX-License-Identifier: Apache-2.0
// The entry of a codebook nearest to the values of one group: eight candidates at a time, each sum in the order of the
// reference. Of equally near candidates the first of the list.
//
// Up to a constant, the distance of candidate c at scale s is s * (s * Q - P) with Q = sum w q^2 and P = 2 sum w x q:
// the nearest candidate is that of the lowest line s * Q - P. So one that is lowest at two scales is lowest at all
// between. Where the lines lie apart by more than all roundings (of ours and of the reference), they decide for many
// scales at once; else the sums of the reference do.
#pragma once

#include "eight.h"
#include "grid_table.h"
#include "lanes.h"

namespace tael {
namespace {

constexpr int kLongestList = 40;  // chunks
// Sums beyond (overflows, of absurd values) find no entry; all levels are zero then.
constexpr float kFarthest = 3.40282326e38f;
constexpr int32_t kLooked = 0x10000;  // in a code: the lattice point was no entry

// Levels of a code as the odd numbers the scale multiplies.
template <class Book, class Ints>
inline auto odd_level(Ints code, int i) {
    Ints odd;
    if constexpr (Book::bits == 4) odd = code >> (4 * i) & 15;
    else odd = (i == 0 ? code << 1 : code >> (i == 0 ? 0 : 2 * i - 1));
    if constexpr (Book::bits == 2) odd = (odd & 6) | 1;
    if constexpr (sizeof(Ints) == sizeof(eight_i)) return __builtin_convertvector(odd, eight_f);
    else return __builtin_convertvector(odd, vf);
}

template <class Book>
inline eight_f odd_numbers() {
    return Book::dims == 8 ? eight_f{1, 3, 5, 7, 1, 3, 5, 7} : eight_f{1, 3, 5, 7, 9, 11, 13, 15};
}

#if defined(__AVX2__)
// What eight candidates have at their levels number i.
template <class Book>
inline eight_f at_level(eight_f by_level, eight_i code, int i) {
    if constexpr (Book::dims == 8) return eight_f(_mm256_permutevar_ps(__m256(by_level), __m256i(code >> (2 * i))));
    else return eight_f(_mm256_permutevar8x32_ps(__m256(by_level), __m256i(code >> (4 * i + 1))));
}
#endif

// A group: values and weights, kLanes apart.
template <class Book>
struct GridGroup {
    static constexpr int dims = Book::dims;
    GridGroup(const vf* values, const vf* weights, int lane)
        : x(reinterpret_cast<const float*>(values) + lane), w(reinterpret_cast<const float*>(weights) + lane) {}
    const float *x, *w;
    float margin = -1;  // what the lines must lie apart; negative if they are not to be trusted
    eight_f squares[dims], products[dims];  // w q^2 and 2 w x q by level; without lookups: w and 2 w x

    // Scales to come lie from `low` to `high`.
    void prepare(float low, float high) {
        constexpr float farthest = 2 * Book::levels - 1;
        float mass = 0, largest = high * farthest;
        for (int i = 0; i < dims; ++i) {
            const float value = x[i * kLanes], weight = w[i * kLanes], magnitude = __builtin_fabsf(value);
            const float reach = high * farthest + magnitude, product = 2.0f * (weight * value);
            largest = largest < magnitude ? magnitude : largest;
            mass += weight * (reach * reach);
#if defined(__AVX2__)
            const eight_f odd = odd_numbers<Book>();
            squares[i] = (odd * odd) * weight;
            products[i] = odd * product;
#else
            squares[i] = all(weight);
            products[i] = all(product);
#endif
        }
        // Each sum is off by less than 16 roundings (2^-24) of `mass`, four sums take part, twice that for safety.
        // Sizes are such that no underflow matters.
        margin = mass > 1e-24f && mass < 1e30f && largest < 1e6f ? mass * 0x1p-17f / low : -1.0f;
    }

    // The line of eight candidates.
    void lines(eight_i code, eight_f& square, eight_f& product) const {
        for (int i = 0; i < dims; ++i) {
#if defined(__AVX2__)
            const eight_f a = at_level<Book>(squares[i], code, i), b = at_level<Book>(products[i], code, i);
#else
            const eight_f odd = odd_level<Book>(code, i);
            const eight_f a = squares[i] * odd * odd, b = products[i] * odd;
#endif
            square = i == 0 ? a : square + a;
            product = i == 0 ? b : product + b;
        }
    }

    // The distances that the reference computes.
    struct Terms {
        eight_f by_level[dims];
    };
    eight_f distances([[maybe_unused]] const Terms& terms, eight_i code, [[maybe_unused]] float scale) const {
        eight_f total{};
        for (int i = 0; i < dims; ++i) {
#if defined(__AVX2__)
            const eight_f term = at_level<Book>(terms.by_level[i], code, i);
#else
            const eight_f off = odd_level<Book>(code, i) * scale - x[i * kLanes];
            const eight_f term = w[i * kLanes] * off * off;
#endif
            total = i == 0 ? term : total + term;
        }
        return total;
    }

    uint32_t nearest(const uint16_t* codes, uint32_t chunks, float scale) const {
        Terms terms;
#if defined(__AVX2__)
        const eight_f reached = odd_numbers<Book>() * scale;
        for (int i = 0; i < dims; ++i) {
            const eight_f off = reached - x[i * kLanes];
            terms.by_level[i] = w[i * kLanes] * off * off;
        }
#endif
        eight_f sums[kLongestList], least = all(kFarthest);
        for (uint32_t k = 0; k < chunks; ++k) {
            sums[k] = distances(terms, widen_eight(codes + 8 * k), scale);
            least = least_eight(sums[k], least);
        }
        least = least_of(least);
        for (uint32_t k = 0; k < chunks; ++k)
            if (const unsigned equal = bits_of(sums[k] == least)) return codes[8 * k + unsigned(__builtin_ctz(equal))];
        return Book::zero_code;
    }
};

}  // namespace
}  // namespace tael
