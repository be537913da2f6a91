// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "switchyard/checkpoint/block_reader.h"
#include "switchyard/checkpoint/quantization.h"
#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// Finds the tensors of the linear layer `base` (below the block) with weight [rows, cols] in the
/// scheme's spelling, and checks types, shapes and scales.
/// Errors: nothing is thrown; faults are noted in `reader` and nothing is returned.
std::optional<WeightSource> find_linear(BlockReader& reader, const std::string& base,
                                        std::int64_t rows, std::int64_t cols, const Scheme& scheme);

/// The layout of an unquantised weight stored as `type`: F32 becomes bf16.
formats::WeightLayout plain_layout(TensorType type);

/// Notes a fault for NaN, infinite or negative block scales, or global and input scales out of
/// range. Returns false when there was one.
bool check_scales(BlockReader& reader, const WeightSource& w);

}  // namespace switchyard::checkpoint
