// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/moe_layer.h"
#include "switchyard/api/ranks.h"
#include "switchyard/core/ending.h"

namespace switchyard {

namespace layer {
class RankLayer;
}

/// How a layer is spread over ranks, and what its calls will be; equal on all of them, but for
/// `build.threads` and what the caller's finalize does.
struct RankBuildOptions {
  /// As for a MoeLayer. ep = tp = 1: as many EP ranks as there are ranks, or TP ranks under dtp and
  /// ttp. Without a `parallel`: dep, or ttp where ep is 1; one rank alone is ttp. `threads` is each
  /// rank's, 0 its share of the processors; a pool is the rank's and is refused. Progress is told
  /// on rank 0 alone.
  BuildOptions build;
  std::int64_t max_tokens = 0;    // of one rank and call
  std::int64_t chunk_tokens = 0;  // most of one exchange under dep: longer calls are cut; 0: no cut
  Ending ending = Ending::kPlain;
  FinalizeRows finalize{};                 // in place of the sum of weight * row
  std::vector<std::int32_t> slot_experts;  // a placement; empty: as `build.slots` says
  bool balanced = false;                   // experts may migrate, and choices are counted
};

/// One rank's end of a layer whose experts are spread over ranks: some experts, some columns of
/// each, and the exchange with the others. docs/developer-guide.md has the four modes.
///
/// Collective: construction, forward and all changes; ranks without tokens call too. The ranks
///          compare what must be equal before they pack: options, switches, the router's weights, a
///          checkpoint's digest; a caller's expert arrays are not compared. A Rank outlives what is
///          built on it.
/// GPUs:    under tep and ttp, each rank on the GPU that is current when it builds. A forward is
///          enqueued on args.stream, all of its memory lies on that GPU, and it can be captured.
///          Layers share nothing there: ranks that call them in unlike orders end by the deadline.
/// Errors:  UsageError and CannotServe as for a MoeLayer: an error of one rank is told on all, as a
///          UsageError where it is another's. DeviceError, and UsageError for calls that overlap,
///          as for a Rank. Of what goes wrong on a GPU the next forward(), wait() or check()
///          tells.
class RankMoeLayer {
 public:
  /// Layer `index` of a checkpoint. Of the experts only the rank's own are read.
  static RankMoeLayer from_checkpoint(Rank& rank, const Checkpoint& checkpoint, std::int64_t index,
                                      const RankBuildOptions& options);
  /// A published shape with seeded random weights.
  static RankMoeLayer from_preset(Rank& rank, std::string_view preset,
                                  const RankBuildOptions& options);
  /// The caller's own arrays, of all experts; those of experts that other ranks hold are not read.
  static RankMoeLayer from_arrays(Rank& rank, const LayerArrays& arrays,
                                  const RankBuildOptions& options);

  RankMoeLayer(RankMoeLayer&&) noexcept;
  RankMoeLayer& operator=(RankMoeLayer&&) noexcept;
  ~RankMoeLayer();

  /// The complete problem, with the format and modes that the layer really has.
  const Problem& problem() const;
  /// How it is spread.
  Parallel parallel() const;
  /// Identity of what runs the routed experts.
  std::string leaf() const;
  /// What exchanges tokens: a strategy's name, or "all_reduce" where the ranks reduce instead.
  std::string strategy() const;
  /// The resolution report as canonical JSON.
  std::string report_json() const;
  /// Notices of loading and conversion.
  const std::vector<std::string>& notices() const;
  /// Which expert stands in which slot, of which each EP rank holds a run. Shapes: [slots].
  std::vector<std::int32_t> slot_experts() const;

  /// Workspace of a forward. Units: bytes, 64-byte aligned.
  std::size_t workspace_bytes() const;
  /// Runs the layer on this rank's tokens (dep, dtp) or on those that all ranks hold (tep, ttp).
  /// A layer that ends in a fused all-reduce gives its own output here. Allocates nothing.
  /// Errors: UsageError for a broken argument, and for ranks that call unlike layers, which ends
  /// the call on every rank and with it the group: make new ranks.
  void forward(const ForwardArgs& args);
  /// The same of a layer that ends in a fused all-reduce, with what stands behind it; args.out is
  /// not written. Errors: UsageError also for a layer that ends plainly.
  void forward(const ForwardArgs& args, const BehindLayer& behind);
  /// Waits for what is queued on a stream of the rank's GPU, and throws what went wrong in it. On
  /// the CPU a forward has ended when it returns.
  void wait(Stream stream);
  /// Throws what has gone wrong on the GPU so far; does not wait.
  void check();

  /// Replaces routed expert `e` in every slot that holds it, as MoeLayer::update_expert() does;
  /// every rank gives the whole expert, and the ranks compare a digest of it.
  void update_expert(std::int64_t e, const ExpertArrays& arrays);
  /// The same with expert `e` of layer `index` of a checkpoint.
  void update_expert(std::int64_t e, const Checkpoint& checkpoint, std::int64_t index);
  /// How often all ranks' tokens chose each expert since the last call, the same on all ranks; for
  /// eplb::Balancer. Errors: UsageError for a layer that is not `balanced`. Shapes: [experts].
  std::vector<std::int64_t> take_counts();
  /// Moves experts between slots until slot s holds slot_experts[s]; no bit of a weight changes.
  /// Errors: UsageError for a layer that is not `balanced`, and for slots that cannot be; the
  /// layer is then as it was. Shapes: slot_experts [slots].
  void migrate(const std::vector<std::int32_t>& slot_experts);

  /// The implementation, for the library's own judges.
  layer::RankLayer& impl();

 private:
  struct State;
  explicit RankMoeLayer(std::unique_ptr<State> state);
  friend struct RankLayerBuilder;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard
