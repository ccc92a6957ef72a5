// SPDX-License-Identifier: Apache-2.0
// The entries nearest to one group for many scales in a row. See grid_search.h for why lines decide.
#pragma once

#include "grid_search.h"

namespace tael {
namespace {

// Readable and writable beyond the last scale of a row.
constexpr int kBeyond = 8;
constexpr int kFew = 4;  // chunks

// The candidates of one lattice point as lines.
template <class Book>
struct CandidateLines {
    const uint16_t* codes;
    uint32_t chunks;
    eight_f squares[kLongestList], products[kLongestList];

    CandidateLines(const GridGroup<Book>& group, const uint16_t* list, uint32_t n, int filled)
        : codes(list), chunks(n) {
        for (uint32_t k = 0; k < n; ++k) group.lines(widen_eight(list + 8 * k), squares[k], products[k]);
        const eight_i copies = eight_i{0, 1, 2, 3, 4, 5, 6, 7} >= filled;  // that fill the last chunk up
        products[n - 1] = copies ? all(-kFarthest) : products[n - 1];
    }

    // The code of the one candidate whose line is lowest by more than the margin, or -1.
    int32_t lowest(float scale, float margin) const {
        eight_f line[kLongestList], least = all(kFarthest);
        for (uint32_t k = 0; k < chunks; ++k) {
            line[k] = squares[k] * scale - products[k];
            least = least_eight(line[k], least);
        }
        least = least_of(least) + margin;
        uint32_t where = 0;
        int count = 0;
        for (uint32_t k = 0; k < chunks; ++k) {
            const unsigned near = bits_of(line[k] <= least);
            count += __builtin_popcount(near);
            where = near ? 8 * k + unsigned(__builtin_ctz(near | 0x100)) : where;
        }
        return count == 1 ? codes[where] : -1;
    }
};

// Few candidates: eight scales at a time instead. most: of candidates, a multiple of eight.
template <int most, class Book>
inline void search_short(const GridGroup<Book>& group, const CandidateLines<Book>& lines, const float* scales, int from,
                         int to, int32_t* out) {
    constexpr int32_t one = 1 << 24;  // counts above the code
    const float *squares = reinterpret_cast<const float*>(lines.squares),
                *products = reinterpret_cast<const float*>(lines.products);
    alignas(32) int32_t codes[most];
    const int count = most == 8 ? 8 : int(8 * lines.chunks);
    for (int k = 0; 8 * k < count; ++k) {
        const eight_i code = widen_eight(lines.codes + 8 * k) + (one | kLooked);
        memcpy(codes + 8 * k, &code, 32);
    }
    for (int trial = from; trial < to; trial += 8) {
        eight_f scale, line[most], least = all(kFarthest);
        memcpy(&scale, scales + trial, 32);
        for (int c = 0; c < count; ++c) {
            line[c] = scale * squares[c] - products[c];
            least = least_eight(line[c], least);
        }
        least += group.margin;
        eight_i found{};
        for (int c = 0; c < count; ++c) found += (line[c] <= least) & codes[c];
        const eight_i stored = found - one;
        memcpy(out + trial, &stored, 32);
        unsigned open = bits_of((found >> 24) != 1);
        open &= to - trial < 8 ? (1u << (to - trial)) - 1 : 0xFFu;
        for (; open; open &= open - 1) {
            const int at = trial + __builtin_ctz(open);
            out[at] = int32_t(group.nearest(lines.codes, lines.chunks, scales[at])) | kLooked;
        }
    }
}

// Many candidates: halves a stretch until the same candidate is lowest at both ends.
template <class Book>
inline void search_long(const GridGroup<Book>& group, const CandidateLines<Book>& lines, const float* scales, int from,
                        int to, int32_t* out) {
    const auto settle = [&](int trial) {  // the code if the lines decide
        const int32_t sure = lines.lowest(scales[trial], group.margin);
        out[trial] = (sure < 0 ? int32_t(group.nearest(lines.codes, lines.chunks, scales[trial])) : sure) | kLooked;
        return sure;
    };
    int ends[8], waiting = 1;  // of the stretches still to do
    int32_t sure_at[8];
    ends[0] = to - 1;
    int32_t here = settle(from);
    sure_at[0] = settle(to - 1);
    while (waiting > 0) {
        const int end = ends[waiting - 1];
        const int32_t there = sure_at[waiting - 1];
        if (end - from > 1 && (here < 0 || here != there)) {
            ends[waiting] = (from + end) / 2;
            sure_at[waiting] = settle(ends[waiting]);
            ++waiting;
            continue;
        }
        for (int trial = from + 1; trial < end; ++trial) out[trial] = here | kLooked;
        from = end;
        here = there;
        --waiting;
    }
}

// The codes of one lattice point for scales[from..to), which fall.
template <class Book>
inline void search_run(const NearTable<Book>& table, const GridGroup<Book>& group, int32_t point, const float* scales,
                       int from, int to, int32_t* out) {
    const NearList list = table.lists[point];
    const uint16_t* codes = table.codes + 8 * list.chunk();
    if (list.on_grid()) {
        const eight_i code = eight_i{} + int32_t(codes[0]);
        for (int trial = from; trial < to; trial += 8) memcpy(out + trial, &code, 32);
        return;
    }
    const uint32_t chunks = list.chunks();
    if (group.margin < 0 || (chunks > 1 && to - from == 1)) {
        for (int trial = from; trial < to; ++trial)
            out[trial] = int32_t(group.nearest(codes, chunks, scales[trial])) | kLooked;
        return;
    }
    const CandidateLines<Book> lines(group, codes, chunks, list.filled());
    if (chunks == 1) search_short<8>(group, lines, scales, from, to, out);
    else if (chunks <= kFew) search_short<8 * kFew>(group, lines, scales, from, to, out);
    else search_long(group, lines, scales, from, to, out);
}

// The code at one scale.
template <class Book>
inline int32_t search_one(const NearTable<Book>& table, const GridGroup<Book>& group, int32_t point, float scale) {
    const NearList list = table.lists[point];
    const uint16_t* codes = table.codes + 8 * list.chunk();
    if (list.on_grid()) return codes[0];
    return int32_t(group.nearest(codes, list.chunks(), scale)) | kLooked;
}

}  // namespace
}  // namespace tael
