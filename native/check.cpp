// SPDX-License-Identifier: Apache-2.0
// A program, not part of the module: prints a digest of every kernel's output for each level that runs here. Built for
// two processors (make test-aarch64 uses a cross compiler and qemu), the digests must be equal.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "dispatch.h"

using namespace tael;

namespace {

uint64_t digest = 0;

void add(const void* data, size_t n) {  // FNV-1a
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < n; ++i) digest = (digest ^ bytes[i]) * 1099511628211u;
}

void add(uint64_t value) { add(&value, sizeof value); }

std::vector<uint8_t> random_bytes(size_t n) {
    std::vector<uint8_t> bytes(n);
    uint64_t state = 88172645463325252u;
    for (auto& byte : bytes) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        byte = uint8_t(state >> 32);
    }
    return bytes;
}

// Every block type over rows of one and of many blocks, without and with weights.
void add_blocks(const Kernels& k, const std::vector<uint8_t>& everyday) {
    constexpr size_t n = 12 * 1280;
    std::vector<float> source(n), weights(n), values(n);
    std::memcpy(source.data(), everyday.data(), 4 * n);
    std::vector<uint8_t> blocks(4 * n);
    for (size_t i = 0; i < n; ++i) weights[i] = source[n - 1 - i] * source[n - 1 - i];
    for (auto family = k.families; *family; ++family)
        for (const BlockKernel* type = *family; type->name; ++type)
            for (const size_t row : {size_t(256), size_t(1280)})
                for (const float* weight : {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
                    if (!weight && type->needs_weights) continue;
                    type->quantize(source.data(), blocks.data(), n / row, row, weight);
                    add(blocks.data(), n / type->block * type->bytes);
                    type->dequantize(blocks.data(), values.data(), n / type->block);
                    add(values.data(), 4 * n);
                }
}

}  // namespace

int main() {
    constexpr size_t n = 200'003;
    const std::vector<uint8_t> any = random_bytes(8 * n);
    std::vector<uint8_t> everyday = any, other = any, out(8 * n);
    for (size_t i = 3; i < everyday.size(); i += 4) everyday[i] = uint8_t(0x38 + everyday[i] % 12);
    other[5 * n] ^= 1;
    for (const std::string& level : runnable_levels()) {
        const Kernels& k = (select_level(level), kernels());
        digest = 14695981039346656037u;
        out.assign(out.size(), 0);
        for (const auto& input : {any, everyday}) {
            for (const Narrow cast :
                 {k.f32_to_bf16, k.f32_to_f16, k.f32_to_f8_e4m3, k.f32_to_f8_e5m2, k.f64_to_f32})
                for (const bool saturate : {false, true})
                    add(cast(input.data(), out.data(), n, saturate)), add(out.data(), 8 * n);
            for (const Widen cast :
                 {k.bf16_to_f32, k.f16_to_f32, k.f8_e4m3_to_f32, k.f8_e5m2_to_f32, k.f64_to_f32_odd})
                cast(input.data(), out.data(), n), add(out.data(), 8 * n);
            for (size_t length = 0; length < 700; ++length)
                add(k.crc32(1, input.data() + length, length)), add(k.crc32c(1, input.data() + length, length));
            const Stats stats = k.stats_f32(input.data(), n);
            add(&stats, sizeof stats);
            add(uint64_t(k.first_nonfinite(input.data(), n)));
        }
        const Errors errors = k.errors_f32(everyday.data(), everyday.data() + 4 * (n / 2), n / 2);
        add(&errors, sizeof errors);
        add(uint64_t(k.first_difference(any.data(), other.data(), any.size())));
        for (const size_t size : {1, 2, 4, 8, 3}) add(k.count_differences(any.data(), other.data(), n, size));
        add_blocks(k, everyday);
        std::printf("%016llx %s\n", (unsigned long long)digest, level.c_str());
    }
}
