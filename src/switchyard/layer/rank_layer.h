// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "switchyard/comm/factory.h"
#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// How one rank's part of a layer is built.
struct RankOptions {
  LayerOptions layer;  // `held` is filled in
  const comm::Strategy* strategy = nullptr;
  std::int64_t capacity = 0;  // most tokens of one rank and call; equal on all ranks
  comm::ExchangeOptions exchange{};
};

/// One rank's part of a layer under attention DP and expert parallelism (`dep`): routes its own
/// tokens, sends them to the ranks that hold their experts, runs its own experts on what it
/// receives, and finishes what comes back.
///
/// finalize:   each rank's share, the sum of weight * row over its choices, is rounded once to the
///             wire; the source adds the shares in rank order in fp32, multiplies by the factor,
///             adds its whole shared expert and rounds once. Where the strategy weighs in the
///             combine, each unweighted row is rounded to the wire and summed in choice order.
/// Collective: construction and forward; ranks without tokens call too. A forward allocates
///             nothing. Two forwards of one part must not overlap.
class RankLayer {
 public:
  /// Packs the experts that `group.rank()` holds, and compares with the other ranks what must be
  /// equal. `group` outlives the layer.
  /// Errors: UsageError on every rank when a rank cannot build its part, the ranks differ, or the
  ///         layer has what ranks do not serve yet (zero experts, latent experts, static scales
  ///         that need calibration); PeerError when a rank does not come.
  RankLayer(comm::Group& group, checkpoint::LayerWeights weights, const RankOptions& options);

  /// The part: routing, the held experts, the shared expert.
  const Layer& part() const { return *layer_; }
  /// What joins the ranks.
  const comm::Strategy& strategy() const { return *strategy_; }
  /// How shares travel.
  comm::Wire wire() const { return wire_; }
  /// Bytes that a forward of up to `capacity` tokens needs.
  std::size_t workspace_bytes() const;
  /// Runs the layer on this rank's tokens. Errors: UsageError for a broken argument, which ends the
  /// call on every rank; PeerError when another rank does not come, or gave up.
  void forward(const ForwardArgs& args);

 private:
  void run_experts(const comm::Received& received, std::span<float> rows,
                   std::span<std::byte> stage) const;

  comm::Group& group_;
  const comm::Strategy* strategy_;
  std::int64_t capacity_;
  comm::Wire wire_;
  std::unique_ptr<Layer> layer_;
  ops::FfnShape shape_;  // of the experts' calls: as many ids per row as arrive
  std::unique_ptr<comm::Exchange> exchange_;
};

}  // namespace switchyard::layer
