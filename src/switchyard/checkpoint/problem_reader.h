// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/quantization.h"

namespace switchyard::checkpoint {

/// Number of routed experts of `layer`.
/// Errors: UsageError naming file, field, value and limit.
std::int64_t read_num_experts(const Family& family, const Config& config, std::int64_t layer);

/// The problem of MoE layer `layer` as the family reads the config, in the layer's own scheme.
/// Errors: UsageError naming file, field, value and limit.
Problem read_problem(const Family& family, const Config& config, std::int64_t layer,
                     const Scheme& scheme);

}  // namespace switchyard::checkpoint
