// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "switchyard/core/shard.h"
#include "switchyard/layer/layer.h"
#include "switchyard/layer/oracle.h"
#include "tests/cases/moe_case.h"

namespace switchyard::test {

/// Which part of a layer a rank holds.
struct PartOf {
  Shard held{};
  Member tp{};
  Member shared_tp{};
};

/// The canonical weights of `whole` with the static scales that it runs with declared.
checkpoint::LayerWeights with_declared_scales(const layer::Layer& whole);

/// One rank's part of `whole`, from the same canonical weights and scales.
std::unique_ptr<layer::Layer> make_part(const layer::Layer& whole, const PartOf& part);

/// One rank's fp32 share of a call's output, and FC2's inputs as the leaf quantised them.
///
/// Shapes:  out [tokens, H'] (L of a latent layer); shared [tokens, H], or empty; inter,
/// shared_inter
///          as StageCapture says; rows [tokens, choices, H'], unweighted, and ids [tokens, choices]
///          of the part's experts, -1 for others', whose rows stay poisoned; chosen [tokens,
///          choices], the layer's own ids.
struct Share {
  std::vector<float> out, shared;
  std::vector<float> weights;  // [tokens, choices]
  std::vector<float> rows;
  std::vector<std::int32_t> ids, chosen;
  std::vector<double> inter, shared_inter;
};

/// The share as DESIGN's finalize has it: the weighted sum over the held experts and columns, times
/// the factor, plus the shard of the shared expert (apart in a latent layer); poisoned before.
Share share_of(const layer::Layer& part, Call& call);

/// The oracle's answer of a layer, or share of a part.
layer::OracleResult oracle_of(const layer::Layer& part, const Call& call);
/// The same with the weights of `leaf`, whose last place a quantiser behind them could show, and
/// with FC2's inputs as the leaf quantised them where `with_codes`.
layer::OracleResult oracle_of(const layer::Layer& part, const Call& call, const Share& leaf,
                              bool with_codes);

}  // namespace switchyard::test
