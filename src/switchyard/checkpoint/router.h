// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/experts.h"
#include "switchyard/checkpoint/layer_weights.h"

namespace switchyard::checkpoint {

/// A small unquantised tensor that is read as fp32.
struct FloatsArgs {
  std::string_view names;  // below the block, "a|b"
  std::vector<std::int64_t> shape;
  std::string_view what = {};  // set: a notice says that another type than F32 is widened
};

/// The tensor's values; finite, or a fault is noted.
std::vector<float> read_float_tensor(BlockReader& reader, const FloatsArgs& args,
                                     std::vector<std::string>& notices);

/// The block's router: weights, biases, per-expert scale, hash table.
RouterWeights read_router(const BlockContext& context, const Config& config,
                          std::vector<std::string>& notices);

/// True when the block's own input was made by a norm whose weight is known, so that the router's
/// input follows from it without another norm.
bool knows_input_norm(const Family& family, const BlockReader& reader);

}  // namespace switchyard::checkpoint
