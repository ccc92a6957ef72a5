// SPDX-License-Identifier: Apache-2.0
// For every point of the lattice around a codebook: the entry if the point is one, else the entries nearest to it, as
// ggml lists them: those of the first few distinct distances, by distance, then by number. Built at first use.
#pragma once

#include <string.h>

#include "grid_points.h"

namespace tael {
namespace {

// A codebook of ggml. `shells`: how many distinct distances count as near. `chunks`: how many groups of eight entries
// all lists take, a fact of the codebook.
template <int dims_, int size_, int shells_, int chunks_, const uint16_t* points_>
struct Codebook {
    static constexpr int dims = dims_, size = size_, shells = shells_, chunks = chunks_;
    static constexpr int levels = dims == 8 ? 3 : 8, lattice = dims == 8 ? 6561 : 4096;
    static constexpr int bits = 16 / dims;  // of a level in a code
    static constexpr int coded(int level) { return dims == 8 ? level : 2 * level + 1; }
    static constexpr uint32_t zero_code = dims == 8 ? 0 : 0x1111;
    static constexpr uint32_t level_in(uint32_t code, int i) {
        return dims == 8 ? code >> (2 * i) & 3 : code >> (4 * i + 1) & 7;
    }
    static constexpr int point_bits = dims == 8 ? 2 : 3;  // in `points`
    static constexpr const uint16_t* points = points_;
    static constexpr int level_of(int number, int i) {
        return points[number] >> (point_bits * i) & ((1 << point_bits) - 1);
    }
};

using BookIq2xxs = Codebook<8, 256, 2, 17176, kPointsIq2xxs>;
using BookIq2xs = Codebook<8, 512, 2, 25934, kPointsIq2xs>;
using BookIq2s = Codebook<8, 1024, 1, 9657, kPointsIq2s>;
using BookIq3xxs = Codebook<4, 256, 2, 4544, kPointsIq3xxs>;
using BookIq3s = Codebook<4, 512, 3, 5069, kPointsIq3s>;

// Where a list begins and how many entries it has.
struct NearList {
    uint32_t packed;
    static NearList of(int chunk, bool on_grid, int count) {
        return {uint32_t(chunk) << 16 | uint32_t(on_grid) << 15 | uint32_t(count)};
    }
    uint32_t chunk() const { return packed >> 16; }
    bool on_grid() const { return packed >> 15 & 1; }
    uint32_t chunks() const { return ((packed & 0x7FFF) + 7) >> 3; }
    int filled() const { return int((packed - 1) & 7) + 1; }  // entries in the last chunk
};

template <class Book>
struct NearTable {
    NearList lists[Book::lattice];    // by lattice point, the first level counting most
    uint16_t numbers[Book::lattice];  // of the entry at a lattice point
    // Lists of entries, the first level lowest: as 2l + 1 in four bits, or as l in two. The last fills its chunk up.
    alignas(64) uint16_t codes[Book::chunks * 8];
};

// Distances to all entries grow by one level at a time, so that lattice points share their beginnings.
template <class Book>
struct TableBuilder {
    NearTable<Book>& table;
    uint8_t squares[Book::dims][Book::levels][Book::size];
    uint8_t far[Book::dims + 1][Book::size];
    uint16_t codes[Book::size];
    int point = 0, chunk = 0;

    void prepare() {
        memset(far, 0, sizeof far);
        for (int number = 0; number < Book::size; ++number) {
            codes[number] = 0;
            for (int i = 0; i < Book::dims; ++i) {
                const int level = Book::level_of(number, i);
                codes[number] = uint16_t(codes[number] | Book::coded(level) << (Book::bits * i));
                for (int at = 0; at < Book::levels; ++at)
                    squares[i][at][number] = uint8_t((level - at) * (level - at));
            }
        }
    }

    // Appends the entries at one distance.
    int append(uint16_t* list, int count, uint8_t distance) {
        const uint8_t* distances = far[Book::dims];
        for (int number = 0; number < Book::size; number += 8) {
            uint8_t found = 0;
            for (int j = 0; j < 8; ++j) found |= uint8_t(distances[number + j] == distance);
            if (!found) continue;
            for (int j = 0; j < 8; ++j)
                if (distances[number + j] == distance) list[count++] = uint16_t(number + j);
        }
        return count;
    }

    uint8_t least_beyond(int distance) {
        uint8_t least = 255;
        for (int number = 0; number < Book::size; ++number) {
            const uint8_t here = far[Book::dims][number];
            const uint8_t candidate = here > distance ? here : uint8_t(255);
            least = candidate < least ? candidate : least;
        }
        return least;
    }

    void finish_point() {
        uint16_t list[Book::size];
        uint8_t distance = least_beyond(-1);
        int count = append(list, 0, distance);
        const bool on_grid = distance == 0;
        table.numbers[point] = on_grid ? list[0] : uint16_t(0);
        for (int shell = 1; !on_grid && shell < Book::shells; ++shell) {
            distance = least_beyond(distance);
            count = append(list, count, distance);
        }
        const int chunks = (count + 7) / 8;
        table.lists[point++] = NearList::of(chunk, on_grid, count);
        for (int k = 0; k < 8 * chunks; ++k)
            table.codes[8 * chunk + k] = codes[list[k < count ? k : count - 1]];
        chunk += chunks;
    }

    void visit(int depth) {
        if (depth == Book::dims) return finish_point();
        for (int at = 0; at < Book::levels; ++at) {
            const uint8_t* __restrict more = squares[depth][at];
            const uint8_t* __restrict from = far[depth];
            uint8_t* __restrict to = far[depth + 1];
            for (int number = 0; number < Book::size; ++number) to[number] = uint8_t(from[number] + more[number]);
            visit(depth + 1);
        }
    }
};

// Whoever comes first builds (some milliseconds); others wait for it.
template <class Book>
const NearTable<Book>& near_table() {
    static NearTable<Book> table;
    static int state;  // 1: being built, 2: built
    if (__atomic_load_n(&state, __ATOMIC_ACQUIRE) == 2) return table;
    int expected = 0;
    if (__atomic_compare_exchange_n(&state, &expected, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
        TableBuilder<Book> builder{table, {}, {}, {}};
        builder.prepare();
        builder.visit(0);
        __atomic_store_n(&state, 2, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&state, __ATOMIC_ACQUIRE) != 2) {
    }
    return table;
}

}  // namespace
}  // namespace tael
