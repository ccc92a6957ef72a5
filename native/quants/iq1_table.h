// SPDX-License-Identifier: Apache-2.0
// For every point of the lattice around the codebook of IQ1: the entry if the point is one, else the entries near to it
// as ggml lists them, those of the three least distances, by distance, then by number. Built at first use.
#pragma once

#include "iq1_points.h"
#include "lanes.h"

namespace tael {
namespace {

constexpr int kIq1Size = 2048, kIq1Lattice = 6561, kIq1Chunks = 44961, kIq1Longest = 26;  // chunks: eight entries each

// Lattice points count their levels with the last as the lowest digit. Codes hold two bits per level, the first lowest.
struct Iq1Table {
    struct List {
        uint32_t first;  // chunk
        uint16_t chunks, number;  // no chunks: the point is the entry of this number
    };
    List lists[kIq1Lattice];
    alignas(16) uint16_t codes[kIq1Chunks][8];  // a list's last entry fills its chunk up
};

struct Iq1Digits {
    uint8_t of[256];
};
constexpr Iq1Digits iq1_digits() {
    Iq1Digits out{};
    for (int code = 0; code < 256; ++code)
        out.of[code] = uint8_t((code & 3) * 27 + (code >> 2 & 3) * 9 + (code >> 4 & 3) * 3 + (code >> 6));
    return out;
}
constexpr Iq1Digits kIq1Digits = iq1_digits();
inline int iq1_lattice_point(uint32_t code) { return kIq1Digits.of[code & 255] * 81 + kIq1Digits.of[code >> 8]; }

struct Iq1Builder {
    Iq1Table& table;
    uint8_t levels[8][kIq1Size];
    int point = 0;
    uint32_t chunk = 0;

    void build() {
        for (int number = 0; number < kIq1Size; ++number)
            for (int i = 0; i < 8; ++i) levels[i][number] = uint8_t(kPointsIq1[number] >> (2 * i) & 3);
        const uint8_t none[kIq1Size] = {};
        visit(0, none);
    }
    // Points that share their first levels share the distances in these.
    void visit(int depth, const uint8_t* far) {
        if (depth == 8) return finish(far);
        for (int at = 0; at < 3; ++at) {
            uint8_t here[kIq1Size];
            for (int number = 0; number < kIq1Size; ++number) {
                const int off = levels[depth][number] - at;
                here[number] = uint8_t(far[number] + off * off);
            }
            visit(depth + 1, here);
        }
    }
    static int least_beyond(const uint8_t* far, int distance) {
        uint8_t least = 255;
        for (int number = 0; number < kIq1Size; ++number) {
            const uint8_t other = far[number] > distance ? far[number] : uint8_t(255);
            least = other < least ? other : least;
        }
        return least;
    }
    void finish(const uint8_t* far) {
        Iq1Table::List& list = table.lists[point++];
        uint16_t* out = table.codes[chunk];
        int count = 0, distance = -1;
        for (int shell = 0; shell < 3; ++shell) {
            distance = least_beyond(far, distance);
            for (int first = 0; first < kIq1Size; first += 8) {
                uint8_t found = 0;
                for (int j = 0; j < 8; ++j) found |= uint8_t(far[first + j] == distance);
                if (!found) continue;
                for (int number = first; number < first + 8; ++number) {
                    if (far[number] != distance) continue;
                    if (distance == 0) {
                        list.number = uint16_t(number);
                        return;
                    }
                    out[count++] = kPointsIq1[number];
                }
            }
        }
        for (; count % 8 != 0; ++count) out[count] = out[count - 1];
        list.first = chunk, list.chunks = uint16_t(count / 8);
        chunk += list.chunks;
    }
};

// Whoever comes first builds (some milliseconds); others wait for it.
inline const Iq1Table& iq1_table() {
    static Iq1Table table;
    static int state;  // 1: being built, 2: built
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == 2) return table;
    int expected = 0;
    if (__atomic_compare_exchange_n(&state, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        Iq1Builder builder{table, {}};
        builder.build();
        __atomic_store_n(&state, 2, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != 2) {
    }
    return table;
}

// What the levels stand for: less or more by an eighth. Four each, for look-ups.
constexpr float kIq1Shift = 0.125f;
alignas(16) constexpr float kIq1Values[2][4] = {{-1 + kIq1Shift, kIq1Shift, 1 + kIq1Shift, 0},
                                                {-1 - kIq1Shift, -kIq1Shift, 1 - kIq1Shift, 0}};

}  // namespace
}  // namespace tael
