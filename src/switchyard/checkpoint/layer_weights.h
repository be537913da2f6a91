// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/core/problem.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::checkpoint {

/// One expert (routed or shared) in canonical form: gate and up stay two matrices with two alphas.
///
/// Shapes:  gate, up [I, H']; down [H', I]; gate_bias, up_bias [I] and down_bias [H'], or empty.
///          A kind with one projection has only `up`.
struct ExpertWeights {
  std::optional<formats::Matrix> gate;
  formats::Matrix up;
  formats::Matrix down;
  std::vector<float> gate_bias, up_bias, down_bias;
};

/// The router's tensors, always fp32 (hash table: ids).
///
/// Shapes:  weight [E+Z, H]; logit_bias, choice_bias [E+Z] or empty; per_expert_scale [E] or empty;
///          hash_table [vocab, k] or empty.
struct RouterWeights {
  std::vector<float> weight, logit_bias, choice_bias, per_expert_scale;
  std::vector<std::int32_t> hash_table;
  std::int64_t vocab = 0;
};

/// The shared expert: one FFN of the joint width, with an optional sigmoid gate vector [H].
struct SharedExpert {
  ExpertWeights weights;
  std::vector<float> gate;
  std::string format;  // its own format, canonical name
  formats::ActivationQuant activation_quant = formats::ActivationQuant::kNone;  // as declared
  Activation activation;
};

/// The projections of a latent layer: x -> down -> experts -> weighted sum, times the factor ->
/// RMSNorm -> up -> + shared expert. Router and shared expert read the full x.
///
/// Shapes:  down [L, H]; up [H, L]; norm [L] fp32, or empty for a family without one. L is
///          Problem::latent, the width H' of the routed experts.
struct LatentProjection {
  formats::Matrix down;
  formats::Matrix up;
  std::vector<float> norm;
  float norm_eps = 0;  // added to the mean square; read only with a norm
};

/// Yields expert `e` of a layer; borrows from the mapping, materialises at most that one expert.
using ExpertSource = std::function<ExpertWeights(std::int64_t e)>;

/// One MoE layer of a checkpoint (or of a preset, or of caller's arrays) in canonical form.
struct LayerWeights {
  std::int64_t layer = 0;        // the checkpoint's layer index
  std::string block;             // tensor prefix, e.g. "model.layers.3.mlp"
  Problem problem;               // with the layer's own final format
  formats::WeightLayout layout;  // the routed experts' storage
  formats::ActivationQuant activation_quant = formats::ActivationQuant::kNone;  // as declared
  RouterWeights router;
  ExpertSource expert;
  std::optional<SharedExpert> shared;
  std::optional<LatentProjection> latent;  // set exactly when problem.latent > 0
  // Granite's shared_mlp: it stands beside the block and joins the layer only when asked for.
  std::optional<SharedExpert> parallel_mlp;
  std::vector<std::string> notices;  // e.g. "F32 weights rounded to bf16"
};

}  // namespace switchyard::checkpoint
