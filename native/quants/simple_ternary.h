// SPDX-License-Identifier: Apache-2.0
// Q1_0, Q2_0, TQ1_0 and TQ2_0: signs, or signs and zeros, of a block with one scale. Halves round away from zero.
#pragma once

#include "simple_plain.h"

namespace tael {
namespace {

struct SignBits {  // Q1_0: the scale is the mean magnitude, summed in order
    static constexpr int block = 128, bytes = 18;
    using Scales = Steps;
    static void prepare(const float* from, Steps& to) {
        const float* rows[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) rows[lane] = from + lane * block;
        vf sum = every(0.0f);
        for (int at = 0; at < block; at += 4) {
            vf four[4];
            columns(rows, at, four);
            for (int i = 0; i < 4; ++i) sum += magnitude(four[i]);
        }
        write_halves(sum / every(float(block)), to.half);
    }
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        put_half(to, by.half[lane]);
        for (int i = 0; i < block; i += 16) {
            uint32_t bits = 0;
            for (int k = 0; k < 16; k += kLanes) bits |= mask_bits(vi(load(from + i + k) >= every(0.0f))) << k;
            *reinterpret_cast<u16*>(to + 2 + i / 8) = uint16_t(bits);
        }
    }
};

// The scale is the largest magnitude; an element is 0, 1 or 2: nearest to minus the scale, zero or the scale.
template <int n>
struct Ternary {
    static constexpr int block = n;
    using Scales = Steps;
    static void prepare(const float* from, Steps& to) {
        const vf scale = magnitudes<n>(from);
        vi usable;
        store(to.inverse, inverse_of(scale, usable));
        store(to.round, usable ? every(1.0f) : every(0.0f));
        write_halves(scale, to.half);
    }
    static bytes32 trits(const float* from, vf inverse) {
        vi codes[kPer32];
        for (int i = 0; i < kPer32; ++i) {
            const vf value = load(from + i * kLanes) * inverse;
            codes[i] = -(vi(value >= every(0.5f)) + vi(value > every(-0.5f)));
        }
        return pack(codes);
    }
};

struct TwoBits : Ternary<64> {  // Q2_0
    static constexpr int bytes = 18;
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        typedef uint32_t words8 __attribute__((vector_size(32)));
        // Without a usable inverse the reference's conversions come to the least code on x86.
        const uint8_t less = by.round[lane] == 0.0f;
        uint32_t words[16];
        for (int half = 0; half < 2; ++half) {
            words8 four = words8(trits(from + 32 * half, every(by.inverse[lane])) - less);  // four codes in four bytes
            four |= four >> 6;
            write(words + 8 * half, four | four >> 12);
        }
        put_half(to, by.half[lane]);
        for (int i = 0; i < 16; ++i) to[2 + i] = uint8_t(words[i]);
    }
};

struct FourInByte : Ternary<256> {  // TQ2_0
    static constexpr int bytes = 66;
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        typedef uint16_t words16 __attribute__((vector_size(32)));
        const vf inverse = every(by.inverse[lane]);
        for (int half = 0; half < 2; ++half, from += 128) {
            words16 all = words16(trits(from, inverse));
            for (int n = 1; n < 4; ++n) all |= words16(trits(from + 32 * n, inverse)) << (2 * n);
            write(to + 32 * half, all);
        }
        put_half(to + 64, by.half[lane]);
    }
};

struct FiveInByte : Ternary<256> {  // TQ1_0: five trits, the first the most significant, as a fraction of 256
    static constexpr int bytes = 54;
    static void finish(const float* from, const Steps& by, int lane, uint8_t* to) {
        const vf inverse = every(by.inverse[lane]);
        uint8_t codes[256], numbers[52];
        for (int i = 0; i < 256; i += 32) write(codes + i, trits(from + i, inverse));
        bytes32 all = read<bytes32>(codes);
        for (int n = 1; n < 5; ++n) all = all + all + all + read<bytes32>(codes + 32 * n);
        bytes16 few = read<bytes16>(codes + 160);
        for (int n = 1; n < 5; ++n) few = few + few + few + read<bytes16>(codes + 160 + 16 * n);
        write(numbers, all);
        write(numbers + 32, few);
        for (int i = 0; i < 4; ++i) {
            const uint8_t* last = codes + 240 + i;
            numbers[48 + i] = uint8_t(3 * (3 * (3 * (3 * last[0] + last[4]) + last[8]) + last[12]));
        }
        for (int i = 0; i < 52; ++i) to[i] = uint8_t(uint16_t(numbers[i] * 256 + 242) / 243);
        put_half(to + 52, by.half[lane]);
    }
};

}  // namespace
}  // namespace tael
