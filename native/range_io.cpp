// SPDX-License-Identifier: Apache-2.0
#include "range_io.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "dispatch.h"

namespace tael {
namespace {

// Small enough to stay in a core's second-level cache between read, checksum and write.
constexpr size_t kBuffer = 256 * 1024;

uint8_t* thread_buffer() {
    struct Free {
        void operator()(void* memory) const { free(memory); }
    };
    thread_local std::unique_ptr<void, Free> buffer;
    if (!buffer) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 4096, kBuffer) == 0) buffer.reset(memory);
    }
    return static_cast<uint8_t*>(buffer.get());
}

// Calls `use(data, count)` for each piece read; it returns 0 or an errno.
template <class Use>
RangeResult read_range(int in, uint64_t offset, uint64_t n, Use use) {
    RangeResult result = {0, false, 0, 0};
    uint8_t* buffer = thread_buffer();
    if (buffer == nullptr) result.error = ENOMEM;
    while (result.error == 0 && result.done < n) {
        const size_t wanted = size_t(std::min<uint64_t>(kBuffer, n - result.done));
        const ssize_t got = pread(in, buffer, wanted, off_t(offset + result.done));
        if (got > 0) {
            result.error = use(buffer, size_t(got));
            if (result.error == 0) result.done += uint64_t(got);
        } else if (got == 0) {
            result.ended = true;
            break;
        } else if (errno != EINTR) {
            result.error = errno;
        }
    }
    return result;
}

int write_all(int out, const uint8_t* data, size_t n, uint64_t offset) {
    while (n != 0) {
        const ssize_t written = pwrite(out, data, n, off_t(offset));
        if (written < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (written == 0) return EIO;  // a device that takes nothing would loop for ever
        data += written, offset += uint64_t(written), n -= size_t(written);
    }
    return 0;
}

#if defined(__linux__)

// In the kernel, or by reference where the file system shares extents. Returns how far it came; what is left, and
// any error, is for the loop to meet again: old kernels and network file systems refuse in many ways.
uint64_t copy_in_kernel(int in, uint64_t in_offset, int out, uint64_t out_offset, uint64_t n) {
    uint64_t done = 0;
    while (done < n) {
        loff_t from = loff_t(in_offset + done), to = loff_t(out_offset + done);
        const size_t wanted = size_t(std::min<uint64_t>(n - done, uint64_t(1) << 30));
        const ssize_t copied = copy_file_range(in, &from, out, &to, wanted, 0);
        if (copied > 0) {
            done += uint64_t(copied);
        } else if (copied == 0 || errno != EINTR) {
            break;
        }
    }
    return done;
}

#else

uint64_t copy_in_kernel(int, uint64_t, int, uint64_t, uint64_t) { return 0; }

#endif

}  // namespace

RangeResult copy_range(int in, uint64_t in_offset, int out, uint64_t out_offset, uint64_t n, bool want_crc) {
    const uint64_t skipped = want_crc ? 0 : copy_in_kernel(in, in_offset, out, out_offset, n);
    uint64_t to = out_offset + skipped;
    uint32_t crc = 0;
    RangeResult result = read_range(in, in_offset + skipped, n - skipped, [&](const uint8_t* data, size_t count) {
        if (want_crc) crc = kernels().crc32(crc, data, count);
        const int error = write_all(out, data, count, to);
        to += count;
        return error;
    });
    result.done += skipped;
    result.crc = crc;
    return result;
}

RangeResult crc32_range(int in, uint64_t in_offset, uint64_t n) {
    uint32_t crc = 0;
    RangeResult result = read_range(in, in_offset, n, [&](const uint8_t* data, size_t count) {
        crc = kernels().crc32(crc, data, count);
        return 0;
    });
    result.crc = crc;
    return result;
}

}  // namespace tael
