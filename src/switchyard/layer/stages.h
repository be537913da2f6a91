// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/layer/judge.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// One stage's values of one token; `ints` for ids, else `floats`.
struct Stage {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> floats;
  std::vector<std::int32_t> ints;
};

/// Everything between one token and its output, the leaf's values and, under the prefix "oracle.",
/// the oracle's on the leaf's choice of experts.
///
/// Names:   hidden [H]; logits [E+Z]; ids, weights [k]; latent [L]; x_quantised [choices, H'],
///          fc1_gate, fc1_up, fc2_input [choices, I] and rows [choices, H'], dequantised, fused
///          shared experts behind the choices; shared_fc2_input [shared I]; out [H]. What a layer
///          does not have is absent; rows of skipped choices and zero experts are NaN but in
///          `rows`. Of a layer on cuda, FC1 hands its sums to the activation in registers: fc1_gate
///          and fc1_up are there under "oracle." alone. x_quantised is by the cpu's quantiser on
///          any device; that the GPU's gives the same bits is what quantize_cuda_test holds.
/// Errors:  UsageError unless args holds exactly one token.
std::vector<Stage> stages_of(const Layer& layer, const JudgeArgs& args);

}  // namespace switchyard::layer
