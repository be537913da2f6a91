// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

namespace switchyard::ops {

/// Checks one canonical expert in front of packing, for any device.
///
/// Errors:  UsageError unless its projections and biases are those of `shape`, stored as it says.
void check_expert(const FfnShape& shape, const checkpoint::ExpertWeights& expert);

}  // namespace switchyard::ops
