// SPDX-License-Identifier: Apache-2.0
// Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 without importances. Per block of 32: a scale from the extremes (and an offset), and
// each element's nearest step. kLanes blocks at a time share reductions, divisions and float16 roundings.
// Where the scale's inverse is infinite the reference converts infinities to integers, on x86 to codes of zero: so do
// we everywhere.
#pragma once

#include "simple_bytes.h"

namespace tael {
namespace {

// The extremes of kLanes blocks of n elements, a block per lane. Exact, save that a zero may have either sign.
template <int n>
inline void extremes(const float* from, vf& low, vf& high) {
    vf lows[kLanes], highs[kLanes];
    for (int block = 0; block < kLanes; ++block, from += n) {
        vf a = load(from), b = a;
        for (int i = kLanes; i < n; i += kLanes) {
            const vf value = load(from + i);
            a = Smaller()(value, a);
            b = Larger()(value, b);
        }
        lows[block] = a, highs[block] = b;
    }
    low = fold(lows, Smaller());
    high = fold(highs, Larger());
}

// The largest magnitude of each of kLanes blocks.
template <int n>
inline vf magnitudes(const float* from) {
    vf rows[kLanes];
    for (int block = 0; block < kLanes; ++block, from += n) {
        vf top = magnitude(load(from));
        for (int i = kLanes; i < n; i += kLanes) top = Larger()(magnitude(load(from + i)), top);
        rows[block] = top;
    }
    return fold(rows, Larger());
}

// 1 / scale, and zero where that is infinite or the scale zero; `usable`: where it is neither infinite.
inline vf inverse_of(vf scale, vi& usable) {
    const vf inverse = every(1.0f) / scale;
    const vi zero = scale == every(0.0f);
    usable = zero | vi(magnitude(inverse) < every(__builtin_inff()));
    return usable & ~zero ? inverse : every(0.0f);
}

// The signed element of largest magnitude of each block, the first of several; zero is +0.
template <int n>
inline vf peaks(const float* from) {
    vf low, high;
    extremes<n>(from, low, high);
    vf peak = high > -low ? high : low;
    const vi even = high == -low;
    if (some(even)) {
        for (int lane = 0; lane < kLanes; ++lane) {
            if (!even[lane]) continue;
            const float* block = from + n * lane;
            const float top = high[lane];
            int i = 0;
            while (__builtin_fabsf(block[i]) != top) ++i;
            peak[lane] = top == 0.0f ? 0.0f : block[i];
        }
    }
    return peak;
}

// The extremes as the reference finds them: of zeros of both signs the first counts.
template <int n>
inline void ordered_extremes(const float* from, vf& low, vf& high) {
    extremes<n>(from, low, high);
    const vi zero = low == every(0.0f);
    if (some(zero)) {
        for (int lane = 0; lane < kLanes; ++lane) {
            if (!zero[lane]) continue;
            const float* block = from + n * lane;
            int i = 0;
            while (block[i] != 0.0f) ++i;
            low[lane] = block[i];
        }
    }
    high = high == low ? low : high;  // so that their difference is +0
}

inline void put_half(uint8_t* to, uint32_t half) { *reinterpret_cast<u16*>(to) = uint16_t(half); }

// Codes of 4 or 5 bits: nibbles at the end, before them the fifth bits.
template <bool fifth>
inline void put_codes(uint8_t* to, bytes32 codes) {
    if constexpr (fifth) {
        *reinterpret_cast<u32*>(to) = bits_of(codes, 4);
        to += 4, codes &= 15;
    }
    write(to, join_nibbles(codes));
}

// What the elements of a block are multiplied with, and what else they need; a block per entry.
struct Steps {
    float inverse[kLanes], offset[kLanes], round[kLanes];
    uint32_t half[kLanes], half_offset[kLanes];
};

template <bool fifth>
struct Symmetric {  // Q4_0, Q5_0
    using Scales = Steps;
    static constexpr int block = 32, bytes = fifth ? 22 : 18, steps = fifth ? 16 : 8;
    static void prepare(const float* from, Steps& to) {
        const vf scale = peaks<32>(from) / every(-float(steps));
        vi usable;
        store(to.inverse, inverse_of(scale, usable));
        store(to.round, usable ? every(steps + 0.5f) : every(0.0f));
        write_halves(scale, to.half);
    }
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        const vf inverse = every(by.inverse[lane]), round = every(by.round[lane]);
        vi codes[kPer32];
        for (int i = 0; i < kPer32; ++i) codes[i] = truncate(load(from + i * kLanes) * inverse + round);
        put_half(to, by.half[lane]);
        put_codes<fifth>(to + 2, at_most(pack(codes), 2 * steps - 1));
    }
};

template <bool fifth>
struct Affine {  // Q4_1, Q5_1
    using Scales = Steps;
    static constexpr int block = 32, bytes = fifth ? 24 : 20, steps = fifth ? 31 : 15;
    static void prepare(const float* from, Steps& to) {
        vf low, high;
        ordered_extremes<32>(from, low, high);
        const vf scale = (high - low) / every(float(steps));
        vi usable;
        store(to.inverse, inverse_of(scale, usable));
        store(to.offset, scale < every(__builtin_inff()) ? low : every(0.0f));  // too wide: codes of zero
        store(to.round, usable ? every(0.5f) : every(0.0f));
        write_halves(scale, to.half);
        write_halves(low, to.half_offset);
    }
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        const vf inverse = every(by.inverse[lane]), offset = every(by.offset[lane]), round = every(by.round[lane]);
        vi codes[kPer32];
        for (int i = 0; i < kPer32; ++i) codes[i] = truncate((load(from + i * kLanes) - offset) * inverse + round);
        put_half(to, by.half[lane]);
        put_half(to + 2, by.half_offset[lane]);
        put_codes<fifth>(to + 4, at_most(pack(codes), steps));
    }
};

struct EightBits {  // Q8_0: halves round away from zero
    using Scales = Steps;
    static constexpr int block = 32, bytes = 34;
    static void prepare(const float* from, Steps& to) {
        const vf scale = magnitudes<32>(from) / every(127.0f);
        vi usable;
        store(to.inverse, inverse_of(scale, usable));
        write_halves(scale, to.half);
    }
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        const vi nearly_half = vi(every(0x1.fffffep-2f)), sign = vi(every(-0.0f));  // 0.5 would round 0.5 - 2^-25 up
        const vf inverse = every(by.inverse[lane]);
        vi codes[kPer32];
        for (int i = 0; i < kPer32; ++i) {
            const vf value = load(from + i * kLanes) * inverse;
            codes[i] = truncate(value + vf((vi(value) & sign) | nearly_half));
        }
        put_half(to, by.half[lane]);
        write(to + 2, pack(codes));
    }
};

// Groups of kLanes blocks, several prepared ahead of their use so that the long chain to a scale does not stall.
// The last, incomplete group goes by way of copies.
template <class Type>
void quantize_plain(const float* source, uint8_t* out, size_t rows, size_t row_length, const float*) {
    constexpr int ahead = 1024 / (kLanes * Type::block) > 1 ? 1024 / (kLanes * Type::block) : 1;
    typename Type::Scales steps[ahead];
    size_t blocks = rows * (row_length / Type::block);
    while (blocks >= size_t(kLanes)) {
        const int groups = blocks / kLanes < size_t(ahead) ? int(blocks / kLanes) : ahead;
        for (int i = 0; i < groups; ++i) Type::prepare(source + i * kLanes * Type::block, steps[i]);
        for (int i = 0; i < groups; ++i)
            for (int lane = 0; lane < kLanes; ++lane, source += Type::block, out += Type::bytes)
                Type::finish(source, steps[i], lane, out);
        blocks -= size_t(groups) * kLanes;
    }
    if (blocks == 0) return;
    float from[kLanes * Type::block] = {};
    memcpy(from, source, blocks * Type::block * sizeof(float));
    Type::prepare(from, steps[0]);
    for (size_t i = 0; i < blocks; ++i) Type::finish(from + i * Type::block, steps[0], int(i), out + i * Type::bytes);
}

}  // namespace
}  // namespace tael
