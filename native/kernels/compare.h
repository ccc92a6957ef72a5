// SPDX-License-Identifier: Apache-2.0
// Comparison of bytes: where two buffers first differ, and in how many items.
#pragma once

#include "memory.h"

namespace tael {
namespace {

int64_t first_difference(const void* a, const void* b, size_t n_bytes) {
    constexpr size_t step = 256;
    const auto* left = static_cast<const uint8_t*>(a);
    const auto* right = static_cast<const uint8_t*>(b);
    size_t at = 0;
    for (; at + step <= n_bytes; at += step) {
        const auto* x = reinterpret_cast<const u64*>(left + at);
        const auto* y = reinterpret_cast<const u64*>(right + at);
        uint64_t different = 0;
        for (size_t i = 0; i < step / 8; ++i) different |= x[i] ^ y[i];
        if (different) break;
    }
    for (; at < n_bytes; ++at)
        if (left[at] != right[at]) return int64_t(at);
    return -1;
}

template <class Item>
uint64_t count_items(const void* a, const void* b, size_t n) {
    const auto* left = static_cast<const Item*>(a);
    const auto* right = static_cast<const Item*>(b);
    uint64_t total = 0;
    while (n != 0) {
        const size_t part = n < 65536 ? n : 65536;
        uint32_t different = 0;
        for (size_t i = 0; i < part; ++i) different += left[i] != right[i];
        total += different;
        left += part, right += part, n -= part;
    }
    return total;
}

uint64_t count_differences(const void* a, const void* b, size_t n_items, size_t itemsize) {
    switch (itemsize) {
        case 1: return count_items<uint8_t>(a, b, n_items);
        case 2: return count_items<u16>(a, b, n_items);
        case 4: return count_items<u32>(a, b, n_items);
        case 8: return count_items<u64>(a, b, n_items);
        default: break;
    }
    const auto* left = static_cast<const uint8_t*>(a);
    const auto* right = static_cast<const uint8_t*>(b);
    uint64_t total = 0;
    for (size_t i = 0; i < n_items; ++i) total += memcmp(left + i * itemsize, right + i * itemsize, itemsize) != 0;
    return total;
}

}  // namespace
}  // namespace tael
