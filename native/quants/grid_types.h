// SPDX-License-Identifier: Apache-2.0
// What differs between the IQ2 and IQ3 types: facts of ggml, and how a block is laid out.
#pragma once

#include "../kernels/cast.h"
#include "grid_table.h"

namespace tael {
namespace {

inline void put_f16(uint8_t* out, float value) {
    uint32_t overflows = 0;
    const auto code = uint16_t(narrow_one<F16, false>(as_bits(value), overflows));
    memcpy(out, &code, 2);
}
inline void put_u16(uint8_t* out, uint32_t value) {
    const auto word = uint16_t(value);
    memcpy(out, &word, 2);
}
inline void put_u32(uint8_t* out, uint32_t value) { memcpy(out, &value, 4); }

// What the search found for a block of 256: entries and signs of its groups, and integer scales 0..15.
struct Found {
    uint16_t entries[64];
    uint8_t signs[32];  // of eight values each
    uint8_t scales[16];
    bool empty[16];  // sub-blocks of zeros
};

enum class Weigh { kPlain, kSquare, kQuarter };  // without importances: not at all, x^2, x^2 + sigma^2 / 4

// sub: values under one scale. tries: trial scales on either side, `step` tenths apart. even_signs: the eighth sign
// follows from seven. sigma: factor of the mean square. nothing: maxima below it count as zero. fudge: of the scale.
template <class Book_, int sub_, int tries_, bool even_signs_, int sigma_>
struct GridType {
    using Book = Book_;
    static constexpr int sub = sub_, tries = tries_, sigma = sigma_;
    static constexpr bool even_signs = even_signs_;
    static constexpr float step = Book::dims == 8 ? 0.1f : 0.2f;
    static constexpr bool starts_fitted = false;   // from a weighted fit instead of the maximum
    static constexpr bool starts_on_grid = true;   // no second search where no trial was any good
    static constexpr bool searches_whole = false;  // the second search takes groups on the grid as well
    static constexpr Weigh plain_weights = Weigh::kSquare;
};

struct Iq2xxs : GridType<BookIq2xxs, 32, 6, true, 1> {
    static constexpr int bytes = 66;
    static constexpr float nothing = 1e-15f, fudge = 1.0f;
    static constexpr bool starts_fitted = true, starts_on_grid = false, searches_whole = true;
    static constexpr Weigh plain_weights = Weigh::kPlain;
    static void pack(uint8_t* out, const Found& found) {
        for (int i = 0; i < 8; ++i) {
            const uint8_t* signs = found.signs + 4 * i;
            for (int k = 0; k < 4; ++k) out[2 + 8 * i + k] = uint8_t(found.entries[4 * i + k]);
            put_u32(out + 6 + 8 * i, uint32_t(signs[0]) | uint32_t(signs[1]) << 7 | uint32_t(signs[2]) << 14 |
                                         uint32_t(signs[3]) << 21 | uint32_t(found.scales[i]) << 28);
        }
    }
};

inline void pack_nibbles(uint8_t* out, const uint8_t* scales, int n) {
    for (int i = 0; i < n; ++i) out[i] = uint8_t(scales[2 * i] | scales[2 * i + 1] << 4);
}

struct Iq2xs : GridType<BookIq2xs, 16, 9, true, 1> {
    static constexpr int bytes = 74;
    static constexpr float nothing = 1e-15f, fudge = 1.0f;
    static constexpr Weigh plain_weights = Weigh::kPlain;
    static void pack(uint8_t* out, const Found& found) {
        for (int i = 0; i < 32; ++i)
            put_u16(out + 2 + 2 * i, found.entries[i] | uint32_t(found.signs[i]) << 9);
        pack_nibbles(out + 66, found.scales, 8);
    }
};

struct Iq2s : GridType<BookIq2s, 16, 9, false, 2> {
    static constexpr int bytes = 82;
    static constexpr float nothing = 1e-8f, fudge = 0.9875f;
    static constexpr Weigh plain_weights = Weigh::kQuarter;
    static void pack(uint8_t* out, const Found& found) {
        for (int i = 0; i < 32; ++i) out[2 + i] = uint8_t(found.entries[i]);
        memcpy(out + 34, found.signs, 32);
        for (int i = 0; i < 8; ++i) {
            uint32_t high = 0;
            for (int k = 0; k < 4; ++k) high |= uint32_t(found.entries[4 * i + k] >> 8) << (2 * k);
            out[66 + i] = uint8_t(high);
        }
        pack_nibbles(out + 74, found.scales, 8);
    }
};

struct Iq3xxs : GridType<BookIq3xxs, 32, 15, true, 2> {
    static constexpr int bytes = 98;
    static constexpr float nothing = 1e-8f, fudge = 1.0125f;
    static void pack(uint8_t* out, const Found& found) {
        for (int i = 0; i < 64; ++i) out[2 + i] = uint8_t(found.entries[i]);
        for (int i = 0; i < 8; ++i) {
            const uint8_t* signs = found.signs + 4 * i;
            put_u32(out + 66 + 4 * i, uint32_t(signs[0]) | uint32_t(signs[1]) << 7 | uint32_t(signs[2]) << 14 |
                                          uint32_t(signs[3]) << 21 | uint32_t(found.scales[i]) << 28);
        }
    }
};

struct Iq3s : GridType<BookIq3s, 32, 9, false, 2> {
    static constexpr int bytes = 110;
    static constexpr float nothing = 1.4e-45f, fudge = 1.033f;  // the smallest float32: only zero counts as zero
    static constexpr bool starts_on_grid = false, searches_whole = true;
    static void pack(uint8_t* out, const Found& found) {
        uint8_t *entries = out + 2, *signs = out + 74;
        for (int i = 0; i < 8; ++i) {
            if (found.empty[i]) continue;  // as ggml: what follows moves up, except for the high bits and the scales
            uint32_t high = 0;
            for (int k = 0; k < 8; ++k) {
                *entries++ = uint8_t(found.entries[8 * i + k]);
                high |= uint32_t(found.entries[8 * i + k] >> 8) << k;
            }
            out[66 + i] = uint8_t(high);
            memcpy(signs, found.signs + 4 * i, 4);
            signs += 4;
        }
        pack_nibbles(out + 106, found.scales, 4);
    }
};

}  // namespace
}  // namespace tael
