// SPDX-License-Identifier: Apache-2.0
#include "dispatch.h"

#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace tael {
namespace {

struct Level {
    const Kernels* kernels;
    bool runs;
};

std::vector<Level> levels() {
    std::vector<Level> found = {{&kernels_baseline, true}};
#if defined(TAEL_HAVE_AVX2)
    __builtin_cpu_init();
    const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("bmi2");
    found.push_back({&kernels_avx2, avx2});
#endif
#if defined(TAEL_HAVE_AVX512)
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("vpclmulqdq");
    found.push_back({&kernels_avx512, avx2 && avx512});
#endif
#if defined(TAEL_HAVE_NEON)
#if defined(__linux__)
    found.push_back({&kernels_neon, (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0});
#else
    found.push_back({&kernels_neon, true});
#endif
#endif
    return found;
}

// Every kernel over the same bytes: random ones, which hold all exponents, NaN payloads and infinities, and with
// lengths that leave a tail behind every vector width.
bool agrees(const Kernels& level, const Kernels& baseline) {
    constexpr size_t n = 4096 + 37;
    std::vector<uint8_t> input(8 * n + 1), other, ours(8 * n), theirs(8 * n);
    uint64_t random = 0x9E3779B97F4A7C15u;
    for (auto& byte : input) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        byte = uint8_t(random >> 56);
    }
    for (size_t i = 0; i < n; i += 3) input[4 * i + 3] = uint8_t(0x30 + input[4 * i + 3] % 0x20);  // everyday sizes
    const auto same = [&] { return std::memcmp(ours.data(), theirs.data(), ours.size()) == 0; };
    const auto narrow = [&](Narrow Kernels::*cast) {
        for (const bool saturate : {false, true}) {
            const uint64_t a = (level.*cast)(input.data(), ours.data(), n, saturate);
            const uint64_t b = (baseline.*cast)(input.data(), theirs.data(), n, saturate);
            if (a != b || !same()) return false;
        }
        return true;
    };
    const auto widen = [&](Widen Kernels::*cast) {
        (level.*cast)(input.data(), ours.data(), n);
        (baseline.*cast)(input.data(), theirs.data(), n);
        return same();
    };
    for (const auto cast : {&Kernels::f32_to_bf16, &Kernels::f32_to_f16, &Kernels::f32_to_f8_e4m3,
                            &Kernels::f32_to_f8_e5m2, &Kernels::f64_to_f32})
        if (!narrow(cast)) return false;
    for (const auto cast : {&Kernels::bf16_to_f32, &Kernels::f16_to_f32, &Kernels::f8_e4m3_to_f32,
                            &Kernels::f8_e5m2_to_f32, &Kernels::f64_to_f32_odd})
        if (!widen(cast)) return false;
    for (const auto crc : {&Kernels::crc32, &Kernels::crc32c})
        for (const size_t length : {size_t(0), size_t(15), size_t(255), size_t(1000), input.size()})
            if ((level.*crc)(7, input.data(), length) != (baseline.*crc)(7, input.data(), length)) return false;
    other = input;
    other[other.size() - 2] ^= 1;
    if (level.first_difference(input.data(), other.data(), other.size()) != int64_t(other.size()) - 2) return false;
    other[100] ^= 1;
    for (const size_t item : {1, 2, 3, 4, 8, 16})
        if (level.count_differences(input.data(), other.data(), 8 * n / item, item) !=
            baseline.count_differences(input.data(), other.data(), 8 * n / item, item))
            return false;
    const Stats a = level.stats_f32(input.data(), n), b = baseline.stats_f32(input.data(), n);
    if (std::memcmp(&a, &b, sizeof a) != 0) return false;
    for (size_t i = 0; i < n; ++i) input[4 * i + 3] &= 0xBF;  // finite
    if (level.first_nonfinite(input.data(), n) != -1) return false;
    for (size_t i = 0; i < n; i += 3) input[4 * i + 3] = 0x3F;
    const Errors c = level.errors_f32(input.data(), other.data() + 1, n / 2);
    const Errors d = baseline.errors_f32(input.data(), other.data() + 1, n / 2);
    return std::memcmp(&c, &d, sizeof c) == 0;
}

const BlockKernel* find(const Kernels& level, const std::string& name) {
    for (auto family = level.families; *family; ++family)
        for (const BlockKernel* kernel = *family; kernel->name; ++kernel)
            if (name == kernel->name) return kernel;
    return nullptr;
}

// Rows of several sizes of numbers, with and without weights.
bool agrees(const BlockKernel& ours, const BlockKernel& baseline) {
    constexpr size_t rows = 3, length = 512, n = rows * length;
    std::vector<float> source(n), weights(length), values(n), expected(n);
    uint64_t random = 0x9E3779B97F4A7C15u;
    const auto uniform = [&random] {
        random = random * 6364136223846793005u + 1442695040888963407u;
        return float(int32_t(random >> 32)) * 0x1p-31f;
    };
    for (size_t i = 0; i < n; ++i) source[i] = uniform() * uniform() * (i / length == 1 ? 100.0f : 0.05f);
    for (size_t i = 0; i < length; ++i) weights[i] = uniform() * uniform() + 1.0f;
    const size_t size = n / baseline.block * baseline.bytes;
    std::vector<uint8_t> blocks(size), wanted(size);
    for (const float* weight : {static_cast<const float*>(weights.data()), static_cast<const float*>(nullptr)}) {
        if (!weight && baseline.needs_weights) continue;
        ours.quantize(source.data(), blocks.data(), rows, length, weight);
        baseline.quantize(source.data(), wanted.data(), rows, length, weight);
        if (blocks != wanted) return false;
    }
    ours.dequantize(wanted.data(), values.data(), n / baseline.block);
    baseline.dequantize(wanted.data(), expected.data(), n / baseline.block);
    return std::memcmp(values.data(), expected.data(), 4 * n) == 0;
}

const Kernels* current = &kernels_baseline;
bool forced = false;

std::mutex checking;  // guards the table below
std::map<const BlockKernel*, const BlockKernel*> checked;  // kernel of the level in use -> the one to use

}  // namespace

const Kernels& kernels() { return *current; }

std::vector<std::string> runnable_levels() {
    std::vector<std::string> names;
    for (const Level& level : levels())
        if (level.runs) names.push_back(level.kernels->name);
    return names;
}

const char* select_level(const std::string& name) {
    const FloatEnvironment environment;
    std::vector<Level> found = levels();
    for (auto level = found.rbegin(); level != found.rend(); ++level) {  // fastest first
        const Kernels& candidate = *level->kernels;
        if (!level->runs || (!name.empty() && name != candidate.name)) continue;
        if (&candidate == &kernels_baseline || agrees(candidate, kernels_baseline)) {
            current = &candidate;
            forced = !name.empty();
            return candidate.name;
        }
        if (!name.empty())
            throw std::runtime_error("the " + name + " kernels disagree with the baseline on this machine");
    }
    std::string known;
    for (const std::string& one : runnable_levels()) known += (known.empty() ? "" : ", ") + one;
    throw std::invalid_argument("no kernels named '" + name + "' run here; there are: " + known);
}

const BlockKernel* block_kernel(const std::string& name) {
    const BlockKernel* kernel = find(*current, name);
    if (!kernel || current == &kernels_baseline) return kernel;
    const std::lock_guard<std::mutex> lock(checking);
    const auto known = checked.find(kernel);
    if (known != checked.end()) return known->second;
    const BlockKernel* baseline = find(kernels_baseline, name);
    if (!agrees(*kernel, *baseline)) {
        if (forced)
            throw std::runtime_error("the " + std::string(current->name) + " kernel of " + name +
                                     " disagrees with the baseline on this machine");
        return checked[kernel] = baseline;
    }
    return checked[kernel] = kernel;
}

#if defined(__x86_64__)

FloatEnvironment::FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
FloatEnvironment::~FloatEnvironment() { _mm_setcsr(uint32_t(saved_)); }

#elif defined(__aarch64__)

FloatEnvironment::FloatEnvironment() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
}
FloatEnvironment::~FloatEnvironment() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

#else

FloatEnvironment::FloatEnvironment() : saved_(0) {}
FloatEnvironment::~FloatEnvironment() = default;

#endif

}  // namespace tael
