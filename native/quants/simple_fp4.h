// SPDX-License-Identifier: Apache-2.0
// MXFP4 and NVFP4: codes of one sign, two exponent and one mantissa bits. The reference takes the first code of least
// error; so an element's code counts the midpoints between neighbouring values below its magnitude. The errors that
// decide are exact in float32 (Sterbenz), save for those of magnitudes far beyond the scale's reach: see `Sixteens`.
#pragma once

#include "simple_decode.h"
#include "simple_plain.h"

namespace tael {
namespace {

constexpr int kMidpoints = 7;

inline void midpoints(vf scale, vf (&out)[kMidpoints]) {
    constexpr float mids[kMidpoints] = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f};
    for (int i = 0; i < kMidpoints; ++i) out[i] = scale * every(mids[i]);
}

// The count of midpoints below the magnitude, and 8 for negative elements; code 8 stands for 0.
inline vi signed_count(vf value, const vf (&mids)[kMidpoints]) {
    const vf size = magnitude(value);
    vi below = vi(size > mids[0]);
    for (int i = 1; i < kMidpoints; ++i) below += vi(size > mids[i]);
    return vi(vu(value) >> 28 & 8) - below;
}
inline bytes32 without_minus_zero(bytes32 codes) { return codes & bytes32(codes != 8); }

// floor(log2(top)) + 125 in eight bits, where log2 is rounded to float32 before: from a few steps below a power of two
// the logarithm rounds up to a whole number. How many depends on that number's own step: 0.69 (ln 2) times its power.
inline uint8_t mxfp4_exponent(uint32_t bits) {
    constexpr uint8_t steps[8] = {0, 1, 2, 5, 11, 22, 44, 88};
    if (bits == 0) return 0;
    int power = int(bits >> 23) - 127;
    uint32_t mantissa = bits & 0x7FFFFF;
    if (power == -127) {  // subnormal
        const int shift = __builtin_clz(mantissa) - 8;
        mantissa = mantissa << shift & 0x7FFFFF, power = -126 - shift;
    }
    const uint32_t missing = 0x800000 - mantissa;
    if (missing <= 88) {
        const int next = power + 1, size = next > 0 ? power : -next;
        if (size > 0 && missing <= steps[31 - __builtin_clz(uint32_t(size))]) power = next;
    }
    return uint8_t(power + 125);
}

struct Powers {  // MXFP4
    static constexpr int block = 32, bytes = 17;
    struct Scales {
        float top[kLanes];
    };
    static void prepare(const float* from, Scales& to) { store(to.top, magnitudes<32>(from)); }
    static void finish(const float* from, const Scales& by, int lane, uint8_t* to) {
        const uint8_t exponent = mxfp4_exponent(as_bits(by.top[lane]));
        const vf scale = every(half_e8m0(exponent));
        vf mids[kMidpoints];
        midpoints(scale, mids);
        // Eight times 2^125 is infinite, and so its error.
        mids[5] = scale < every(0x1p125f) ? mids[5] : every(__builtin_inff());
        vi codes[kPer32];
        for (int i = 0; i < kPer32; ++i) codes[i] = signed_count(load(from + i * kLanes), mids);
        to[0] = exponent;
        write(to + 1, join_nibbles(without_minus_zero(pack(codes))));
    }
};

// The reference's search, for elements so large that their errors round to the same number.
inline uint8_t first_of_least_error(float value, float scale) {
    constexpr int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint8_t best = 0;
    float least = __builtin_fabsf(float(values[0]) * scale - value);
    for (uint8_t code = 1; code < 16; ++code) {
        const float error = __builtin_fabsf(float(values[code]) * scale - value);
        if (error < least) least = error, best = code;
    }
    return best;
}

// An unsigned E4M3 as the reference rounds to it: halves up; from 256 on the largest.
inline vi to_ue4m3(vf value) {
    const vi bits = vi(value), normal = ((bits + (1 << 19)) >> 20) - (120 << 3);
    const vf few = value < every(0x1p-6f) ? value : every(0.0f);
    const vi subnormal = lower(truncate(few * every(512.0f) + every(0.5f)), splat_i(7));
    const vi code = value < every(0x1p-6f) ? subnormal : normal;
    return value < every(256.0f) ? (code < splat_i(0x78) ? code : splat_i(0x7E)) : splat_i(0x7E);
}

struct Sixteens {  // NVFP4: a scale for each 16 elements, of which eight are low and eight high halves of bytes
    static constexpr int block = 64, bytes = 36;
    static constexpr float beyond = 0x1p29f;  // exact errors up to here: the largest scale, 224, is a multiple of 2^5
    struct Scales {
        float top[4 * kLanes];
        int32_t code[4 * kLanes];
    };
    static void prepare(const float* from, Scales& to) {
        for (int i = 0; i < 4 * kLanes; i += kLanes) {
            const vf top = magnitudes<16>(from + 16 * i);
            store(to.top + i, top);
            write(to.code + i, to_ue4m3(top / every(6.0f)));
        }
    }
    static void finish(const float* from, const Scales& by, int lane, uint8_t* to) {
        uint64_t words[8];
        for (int pair = 0; pair < 4; pair += 2) {
            alignas(64) int32_t flat[32];
            for (int part = 0; part < 2; ++part) {
                const int at = 4 * lane + pair + part;
                const uint8_t code = uint8_t(by.code[at]);
                const float scale = kHalfE4M3.of[code];
                vf mids[kMidpoints];
                midpoints(every(code == 0 ? __builtin_inff() : scale), mids);
                const float* elements = from + 16 * (pair + part);
                for (int i = 0; i < 16; i += kLanes)
                    write(flat + 16 * part + i, signed_count(load(elements + i), mids));
                if (by.top[at] >= beyond)
                    for (int i = 0; i < 16; ++i) flat[16 * part + i] = first_of_least_error(elements[i], scale);
                to[pair + part] = code;
            }
            vi codes[kPer32];
            memcpy(codes, flat, sizeof codes);
            write(words + 2 * pair, without_minus_zero(pack(codes)));
        }
        for (int part = 0; part < 4; ++part)
            *reinterpret_cast<u64*>(to + 4 + 8 * part) = words[2 * part] | words[2 * part + 1] << 4;
    }
};

}  // namespace
}  // namespace tael
