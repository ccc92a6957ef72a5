// SPDX-License-Identifier: Apache-2.0
// Which table of kernels is in use.
#pragma once

#include <string>
#include <vector>

#include "level.h"

namespace tael {

// The table in use; baseline until `select` was called.
const Kernels& kernels();

// The levels that this build has and this processor runs, slowest first.
std::vector<std::string> runnable_levels();

// Puts `name` in use; empty means the fastest level that agrees with the baseline on the self-check. Throws
// std::invalid_argument for a name that is unknown or does not run here, std::runtime_error when a forced level fails
// the self-check. Call it before other threads use the kernels.
const char* select_level(const std::string& name);

// The kernel of a block type on the level in use; null when there is none of this name. On its first use a type's
// kernel is compared with the baseline's: on a difference the baseline's is used, or, when the level was forced,
// std::runtime_error thrown. Thread-safe.
const BlockKernel* block_kernel(const std::string& name);

// While it lives, this thread rounds to nearest even and keeps subnormals, whatever another library set.
class FloatEnvironment {
public:
    FloatEnvironment();
    ~FloatEnvironment();
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

private:
    uint64_t saved_;
};

}  // namespace tael
