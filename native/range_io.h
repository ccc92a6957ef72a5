// SPDX-License-Identifier: Apache-2.0
// Copies and checksums of byte ranges of open files, by pread and pwrite: file positions are neither used nor moved.
#pragma once

#include <stdint.h>

namespace tael {

struct RangeResult {
    int error;       // errno, 0 when all went well
    bool ended;      // the input ended before the range did
    uint64_t done;   // bytes read, and for a copy written
    uint32_t crc;    // CRC-32 of them, where asked for
};

RangeResult copy_range(int in, uint64_t in_offset, int out, uint64_t out_offset, uint64_t n, bool want_crc);
RangeResult crc32_range(int in, uint64_t in_offset, uint64_t n);

}  // namespace tael
