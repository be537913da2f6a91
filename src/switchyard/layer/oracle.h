// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// Below this choice gap two correct twins may order experts differently; such ids are not
/// compared.
inline constexpr double kNearTie = 1e-5;

/// What the oracle is asked, beside the layer: the tokens, and what the leaf chose and quantised.
///
/// Shapes:  hidden [tokens, H] fp32 dense, exact values of the layer's dtype; logits [tokens,
///          E+Z] or empty, then the oracle's own router runs; leaf_ids [tokens, k];
///          leaf_inter [tokens * choices, I], or null; use_leaf_inter [tokens * choices] or null;
///          leaf_shared_inter [tokens, shared I] or null; use_leaf_shared_inter [tokens] or null;
///          leaf_latent [tokens, L], or null.
struct OracleArgs {
  std::int64_t tokens = 0;
  const float* hidden = nullptr;
  const std::int64_t* token_ids = nullptr;
  Span2d<const float> logits;
  const std::int32_t* leaf_ids = nullptr;
  const float* leaf_weights =
      nullptr;  // [tokens, k] or null; read where weights multiply the input
  const double* leaf_inter = nullptr;
  const std::uint8_t* use_leaf_inter = nullptr;
  const double* leaf_shared_inter = nullptr;
  const std::uint8_t* use_leaf_shared_inter = nullptr;
  const float* leaf_latent = nullptr;
};

/// The oracle's answer. That of one rank's part is its share: the weighted sum over the held
/// experts and columns, times the factor, plus its shard of the shared expert; zero experts are
/// left to the rank that finishes. The shares of a latent layer end in front of the norm.
///
/// Shapes:  out [tokens, H], empty for a part of a latent layer, which has latent_share [tokens, L]
///          and shared_share [tokens, H] or empty; inter [tokens * choices, I]; ids [tokens *
///          choices], by the part's own numbers; shared_inter [tokens, shared I], empty without a
///          shared expert of its own. I and shared I are the widths that the layer holds.
struct OracleResult {
  std::vector<double> out, inter, shared_inter;
  std::vector<double> latent_share, shared_share;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> swapped;  // tokens whose near tie the leaf decided the other way
  std::int64_t ids_near_tie = 0;      // tokens whose choice was too close to compare
  std::int64_t ids_differing = 0;     // tokens whose ids differ although the gap was wide
};

/// The oracle's own choice; where a weight multiplies the input, the leaf's within the last place.
///
/// Shapes:  ids, weights [tokens, k].
struct OracleChoice {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

/// Routes in double and compares with the leaf's ids: fills result's swapped and its counts.
OracleChoice oracle_choice(const Layer& layer, const OracleArgs& args, OracleResult& result);
/// The shared expert's rows, gate applied, of what the layer holds of it; empty when it has none of
/// its own. Fills result's shared_inter.
std::vector<double> oracle_shared(const Layer& layer, const OracleArgs& args, OracleResult& result);

/// What latent experts read of args.hidden: the oracle's own rows, or the leaf's where they agree.
/// Shapes: [tokens, L].
std::vector<float> oracle_latent(const Layer& layer, const OracleArgs& args);
/// From sums in latent space, factor applied, to the output: norm, up-projection, shared rows.
/// Shapes:  sum [tokens, L]; shared [tokens, H] or empty; the output [tokens, H].
std::vector<double> oracle_leave_latent(const Layer& layer, std::int64_t tokens,
                                        const std::vector<double>& sum,
                                        const std::vector<double>& shared);

/// The canonical experts behind the packed ids, fused shared ones included; of a part, as it holds
/// them.
checkpoint::ExpertSource packed_experts(const Layer& layer);

/// Runs the whole layer in double: router, routing, experts, shared expert, finalize. Slow;
/// allocates.
OracleResult run_oracle(const Layer& layer, const OracleArgs& args);
/// The same for a caller that holds Layer::reading(), so that a forward and the oracle see the same
/// weights.
OracleResult run_oracle_held(const Layer& layer, const OracleArgs& args);

}  // namespace switchyard::layer
