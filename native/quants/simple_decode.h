// SPDX-License-Identifier: Apache-2.0
// Decoding of the types of 32 to 256 elements with one scale, or one for each 16. The float16 scales of many blocks are
// widened together.
#pragma once

#include "simple_expand.h"

namespace tael {
namespace {

// A type decodes one block given its scale (and offset, the float16 behind it).
template <class Type>
void dequantize_blocks(const uint8_t* source, float* out, size_t blocks) {
    float scales[kTogether], offsets[kTogether];
    while (blocks != 0) {
        const int n = blocks < size_t(kTogether) ? int(blocks) : kTogether;
        read_halves<Type::has_offset>(source + Type::scale_at, Type::bytes, n, scales, offsets);
        for (int i = 0; i < n; ++i, source += Type::bytes, out += Type::block)
            Type::decode(source, scales[i], Type::has_offset ? offsets[i] : 0.0f, out);
        blocks -= size_t(n);
    }
}

template <int block_, int bytes_, int scale_at_ = 0, bool has_offset_ = false>
struct Layout {
    static constexpr int block = block_, bytes = bytes_, scale_at = scale_at_;
    static constexpr bool has_offset = has_offset_;
};

struct DecodeQ4_0 : Layout<32, 18> {
    static void decode(const uint8_t* from, float scale, float, float* out) {
#if defined(__AVX512F__)
        expand_nibbles(from + 2, _mm512_mul_ps(counting_from(-8.0f), _mm512_set1_ps(scale)), out);
#else
        const bytes16 both = read<bytes16>(from + 2);
        expand(signed16((both & 15) - 8), Scaled(scale), out);
        expand(signed16(shifted<4, 15>(both) - 8), Scaled(scale), out + 16);
#endif
    }
};
struct DecodeQ4_1 : Layout<32, 20, 0, true> {
    static void decode(const uint8_t* from, float scale, float offset, float* out) {
#if defined(__AVX512F__)
        const __m512 products = _mm512_mul_ps(counting_from(0.0f), _mm512_set1_ps(scale));
        expand_nibbles(from + 4, _mm512_add_ps(products, _mm512_set1_ps(offset)), out);
#else
        const bytes16 both = read<bytes16>(from + 4);
        expand(signed16(both & 15), Shifted(scale, offset), out);
        expand(signed16(shifted<4, 15>(both)), Shifted(scale, offset), out + 16);
#endif
    }
};
struct DecodeQ5_0 : Layout<32, 22> {
    static void decode(const uint8_t* from, float scale, float, float* out) {
        // Without the fifth bit a code is 16 less.
        const FiveBits codes(from + 6, ~*reinterpret_cast<const u32*>(from + 2), 0xF0);
        expand(signed16(codes.first), Scaled(scale), out);
        expand(signed16(codes.second), Scaled(scale), out + 16);
    }
};
struct DecodeQ5_1 : Layout<32, 24, 0, true> {
    static void decode(const uint8_t* from, float scale, float offset, float* out) {
        const FiveBits codes(from + 8, *reinterpret_cast<const u32*>(from + 4), 16);
        expand(signed16(codes.first), Shifted(scale, offset), out);
        expand(signed16(codes.second), Shifted(scale, offset), out + 16);
    }
};
struct DecodeQ8_0 : Layout<32, 34> {
    static void decode(const uint8_t* from, float scale, float, float* out) {
        expand(read<signed16>(from + 2), Scaled(scale), out);
        expand(read<signed16>(from + 18), Scaled(scale), out + 16);
    }
};

struct DecodeQ1_0 : Layout<128, 18> {  // a bit for plus or minus the scale
    static void decode(const uint8_t* from, float scale, float, float* out) {
        const vi plus = vi(every(scale)), sign = splat_i(INT32_MIN);
        vi own;
        for (int lane = 0; lane < kLanes; ++lane) own[lane] = 1 << lane;
        for (int i = 0; i < 128; i += 16) {
            const int32_t unset = ~int32_t(*reinterpret_cast<const u16*>(from + 2 + i / 8));
            for (int k = 0; k < 16; k += kLanes) {
                const vi flip = vi((splat_i(unset) & (own << k)) != 0) & sign;
                store(out + i + k, vf(plus ^ flip));
            }
        }
    }
};
struct DecodeQ2_0 : Layout<64, 18> {  // two bits, low ones first: -1, 0, 1, 2 scales
#if defined(__AVX2__)
    static void decode(const uint8_t* from, float scale, float, float* out) {
        const FourValues values(scale);
        vi shift;
        for (int lane = 0; lane < kLanes; ++lane) shift[lane] = 2 * lane;
        for (int i = 0; i < 64; i += 16) {
            const vi sixteen = splat_i(int32_t(*reinterpret_cast<const u32*>(from + 2 + i / 4)));
            for (int k = 0; k < 16; k += kLanes) values.put(sixteen >> (shift + 2 * k), out + i + k);
        }
    }
#else
    static void decode(const uint8_t* from, float scale, float, float* out) {
        const bytes16 all = read<bytes16>(from + 2);
        const bytes16 low = __builtin_shufflevector(all, all, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const bytes16 high =
            __builtin_shufflevector(all, all, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
        for (int i = 0; i < 2; ++i) {
            const bytes16 twice = i == 0 ? low : high;
            expand(steps(__builtin_shufflevector(twice, twice, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)),
                   Scaled(scale), out + 32 * i);
            const bytes16 last =
                __builtin_shufflevector(twice, twice, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
            expand(steps(last), Scaled(scale), out + 32 * i + 16);
        }
    }
    static signed16 steps(bytes16 four_times) {
        const bytes16 ones = {1, 4, 16, 64, 1, 4, 16, 64, 1, 4, 16, 64, 1, 4, 16, 64}, twos = ones + ones;
        const signed16 one = (four_times & ones) == ones, two = (four_times & twos) == twos;
        return ~(one + two + two);
    }
#endif
};

struct DecodeTQ1_0 : Layout<256, 54, 52> {  // five trits in a byte, most significant first
    template <class V>
    static void five_times(V centred, Scaled value, float* out, int stride) {
        for (int n = 0; n < 5; ++n, centred += centred + centred, out += stride) {
            const auto trits = leading_trit(centred);
            for (int i = 0; i < int(sizeof trits); i += 16)
                expand(read<signed16>(reinterpret_cast<const char*>(&trits) + i), value, out + i);
        }
    }
    static void decode(const uint8_t* from, float scale, float, float* out) {
        const Scaled value(scale);
#if defined(__AVX2__)
        five_times(read<bytes32>(from) ^ 128, value, out, 32);
#else
        five_times(read<bytes16>(from) ^ 128, value, out, 32);
        five_times(read<bytes16>(from + 16) ^ 128, value, out + 16, 32);
#endif
        five_times(read<bytes16>(from + 32) ^ 128, value, out + 160, 16);
        const uint32_t four = *reinterpret_cast<const u32*>(from + 48);  // of these only four trits
        uint32_t parts[4] = {four};
        for (int n = 1; n < 4; ++n) {  // times 3, byte by byte
            const uint32_t even = parts[n - 1] & 0x00FF00FF, odd = parts[n - 1] >> 8 & 0x00FF00FF;
            parts[n] = (even * 3 & 0x00FF00FF) | (odd * 3 & 0x00FF00FF) << 8;
        }
        expand(leading_trit(read<bytes16>(parts) ^ 128), value, out + 240);
    }
};
struct DecodeTQ2_0 : Layout<256, 66, 64> {
    static void decode(const uint8_t* from, float scale, float, float* out) {
#if defined(__AVX2__)
        const FourValues values(scale);
        for (int i = 0; i < 64; i += 16) {
            vi four[16 / kLanes];
            for (int k = 0; k < 16; k += kLanes) four[k / kLanes] = widen_bytes(from + i + k);
            for (int n = 0; n < 4; ++n)
                for (int k = 0; k < 16; k += kLanes)
                    values.put(four[k / kLanes] >> (2 * n), out + (i / 32) * 128 + i % 32 + 32 * n + k);
        }
#else
        for (int i = 0; i < 4; ++i) {
            const bytes16 four = read<bytes16>(from + 16 * i);
            float* to = out + (i / 2) * 128 + (i % 2) * 16;
            expand(signed16((four & 3) - 1), Scaled(scale), to);
            expand(signed16(shifted<2, 3>(four) - 1), Scaled(scale), to + 32);
            expand(signed16(shifted<4, 3>(four) - 1), Scaled(scale), to + 64);
            expand(signed16(shifted<6, 3>(four) - 1), Scaled(scale), to + 96);
        }
#endif
    }
};

// Half of 2^(code - 127), by whose means doubled codes come out right.
inline float half_e8m0(uint32_t code) { return as_float(code < 2 ? 0x00200000u << code : (code - 1) << 23); }

void dequantize_mxfp4(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += 17, out += 32) {
#if defined(__AVX512F__)
        expand_nibbles(source + 1, _mm512_mul_ps(doubled_fp4(), _mm512_set1_ps(half_e8m0(source[0]))), out);
#else
        const Scaled value(half_e8m0(source[0]));
        const bytes16 both = read<bytes16>(source + 1);
        expand(fp4_values(both & 15), value, out);
        expand(fp4_values(shifted<4, 15>(both)), value, out + 16);
#endif
    }
}

// Half of an unsigned E4M3, whose sign bit counts for nothing save in NaN's code; that and zero are zero.
struct HalfE4M3 {
    float of[256];
    constexpr HalfE4M3() : of() {
        for (uint32_t code = 0; code < 256; ++code) {
            const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
            of[code] = exponent == 0 ? float(mantissa) * 0x1p-10f
                                     : __builtin_bit_cast(float, (exponent + 119) << 23 | mantissa << 20);
        }
        of[0x7F] = 0.0f;
    }
};
constexpr HalfE4M3 kHalfE4M3;

void dequantize_nvfp4(const uint8_t* source, float* out, size_t blocks) {
    for (; blocks != 0; --blocks, source += 36, out += 64) {
        for (int pair = 0; pair < 4; pair += 2) {  // two times 16 elements: eight low, then eight high halves of bytes
            const bytes16 both = read<bytes16>(source + 4 + 8 * pair);
            const signed16 low = fp4_values(both & 15), high = fp4_values(shifted<4, 15>(both));
            expand(__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                   Scaled(kHalfE4M3.of[source[pair]]), out + 16 * pair);
            expand(__builtin_shufflevector(low, high, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31),
                   Scaled(kHalfE4M3.of[source[pair + 1]]), out + 16 * pair + 16);
        }
    }
}

}  // namespace
}  // namespace tael
