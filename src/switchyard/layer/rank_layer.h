// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/base/arena.h"
#include "switchyard/comm/factory.h"
#include "switchyard/comm/reduction.h"
#include "switchyard/core/deployment.h"
#include "switchyard/eplb/cycle.h"
#include "switchyard/eplb/slot_map.h"
#include "switchyard/layer/device_end.h"
#include "switchyard/layer/fused_end.h"
#include "switchyard/layer/layer.h"
#include "switchyard/layer/mega_moe.h"
#include "switchyard/layer/payload.h"
#include "switchyard/layer/rank_steps.h"
#include "switchyard/layer/shared_ends.h"
#include "switchyard/layer/slot_mover.h"

namespace switchyard::layer {

/// How one rank's part of a layer is built.
struct RankOptions {
  LayerOptions layer;  // what each rank holds is filled in
  Parallel parallel = Parallel::kDep;
  std::int64_t tp = 1;                       // ep is the group's size over it
  const comm::Strategy* strategy = nullptr;  // under attention DP
  std::int64_t capacity = 0;                 // most tokens of one rank and call; equal on all ranks
  // Most tokens of one rank and exchange under dep: a call of more is cut into several. 0:
  // capacity.
  std::int64_t chunk = 0;
  bool quantise_first = true;      // rows travel as FC1's quantiser leaves them, where they can
  FinalizeRows finalize{};         // in place of the sum of weight * row
  Ending ending = Ending::kPlain;  // under tep and ttp
  bool shared_gpu = false;         // on cuda: several ranks may sit on one GPU; for tests
  // The expert in each slot, of which each EP rank holds its ep_shard(); empty: expert e in slot e.
  std::vector<std::int32_t> slot_experts{};
  bool balanced = false;      // experts may migrate, and all ranks' choices are counted
  std::string fingerprint{};  // of the environment
  // What else must be the same on all ranks, by name: switches, seeds.
  std::vector<comm::Agreed> agreed{};
  comm::ExchangeOptions exchange{};  // its first_sequence is that of reductions too
  StepListener listener{};
  // Where the group's layers find what they share; on all ranks or none. Read at construction.
  SharedEnds* ends = nullptr;
};

/// One rank's part of a layer whose experts are spread over a group.
///
/// finalize:   `dep`: each rank's share, the sum of weight * row over its choices, is rounded once
///             to the wire; the source adds the shares in rank order in fp32, multiplies by the
///             factor, adds its whole shared expert and rounds once. Where the strategy weighs in
///             the combine, each unweighted row is rounded to the wire and summed in choice order.
///             `dtp`, `tep`, `ttp`: the share is that sum times the factor, plus the rank's shard
///             of the shared expert, rounded once; the shares of all ranks are added in rank order
///             in fp32 and rounded once. A latent layer's shares and sums are of the latent width
///             and hold no shared expert; the token's rank then projects, adds the whole shared
///             expert and rounds. Ending::kFused and kReduce round each expert row and the rank's
///             shard of the shared expert once to the dtype, and then hold the contract of the
///             fused all-reduce.
/// Chunks:     a call of more tokens than an exchange takes is cut into several of them; ranks that
///             have no tokens left exchange none, until no rank has any. No bit depends on it.
/// Order:      the steps of RankStep, each reported to the listener. Counts and slots are of the
///             whole call, in front of its first chunk.
/// Collective: construction and forward; ranks without tokens call too. A forward allocates
///             nothing. Two forwards of one part must not overlap.
/// GPUs:       a leaf of cuda is served under tep and ttp, each rank on the GPU that is current as
///             it is built. A forward is then enqueued on the caller's stream and not waited for,
///             it can be captured into a graph, and all of its memory lies on that GPU; what goes
///             wrong there is told by the next forward(), by wait() or by check().
class RankLayer {
 public:
  /// Packs what `group.rank()` holds, and compares with the other ranks what must be equal. `group`
  /// outlives the layer.
  /// Errors: UsageError on every rank when a rank cannot build its part, the ranks differ, or the
  ///         layer has what ranks do not serve (see can_spread()); PeerError when a rank does not
  ///         come.
  RankLayer(comm::Group& group, checkpoint::LayerWeights weights, const RankOptions& options);

  /// The part: routing, the held experts, the shared expert.
  const Layer& part() const { return *layer_; }
  /// How the layer is spread.
  Parallel parallel() const { return options_.parallel; }
  /// Whether each rank has tokens of its own.
  bool own_tokens() const {
    return options_.parallel == Parallel::kDep || options_.parallel == Parallel::kDtp;
  }
  /// Whether the ranks' shares are reduced; else they exchange tokens.
  bool reduces() const { return options_.parallel != Parallel::kDep; }
  /// Whether the ranks are GPUs.
  bool on_gpus() const { return device_ != nullptr; }
  /// What exchanges tokens; null where the ranks reduce instead.
  const comm::Strategy* strategy() const { return reduces() ? nullptr : options_.strategy; }
  /// Identity of what runs the routed experts: the leaf's, or of the one that exchanges as well.
  std::string_view leaf_id() const { return mega_ ? mega_->id() : layer_->leaf_id(); }
  /// Most tokens of one rank that an exchange takes; 0 where whole calls are reduced.
  std::int64_t chunk_tokens() const { return reduces() ? 0 : chunk(); }
  /// How rows travel to the experts.
  const Payload& payload() const { return payload_; }
  /// Who multiplies routing weights.
  comm::WeightsBy weights_by() const;
  /// How shares travel.
  comm::Wire wire() const { return wire_; }
  /// The ranks.
  comm::Group& group() const { return group_; }
  /// Bytes that a forward of up to `capacity` tokens needs.
  std::size_t workspace_bytes() const;
  /// Whether nothing was written between the parts of the memory that the ranks share; GPUs' has
  /// nothing between them.
  bool canaries_intact() const;
  /// Runs the layer on this rank's tokens. Errors: UsageError for a broken argument, which ends the
  /// call on every rank; PeerError when another rank does not come, or gave up.
  void forward(const ForwardArgs& args);
  /// The same of a layer that ends in a fused all-reduce, with what stands behind it; args.out is
  /// not written. Errors: UsageError also for a layer that ends plainly.
  void forward(const ForwardArgs& args, const BehindLayer& behind);
  /// Waits for what is queued on a stream of the rank's GPU, and throws what went wrong in it. On
  /// the CPU a forward has ended when it returns. Errors: as comm::DeviceAllReduce::wait().
  void wait(Stream stream);
  /// Throws what has gone wrong on the GPU so far; does not wait.
  void check();
  /// How it ends.
  Ending ending() const { return options_.ending; }

  /// Whether some rank's static scales are missing; a forward then throws UsageError.
  bool needs_calibration() const { return needs_calibration_; }
  /// Sets the static scales from all ranks' tokens, as Layer::calibrate() does on one rank: a share
  /// of the layer's tokens from each, or any number from any. Collective.
  ///
  /// Shapes:  hidden [tokens, H] fp32 dense; token_ids [tokens] or, on all ranks, null.
  void calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids);
  /// Replaces routed expert `e` in every slot that holds it, as Layer::update_expert() does; every
  /// rank gives the whole expert. Collective. Errors: UsageError on every rank.
  void update_expert(std::int64_t e, const checkpoint::ExpertWeights& expert);
  /// Moves experts between slots until slot s holds slot_experts[s]; weights travel packed, so that
  /// no bit of them changes. On an error the layer is as it was. Collective, between forwards.
  /// Errors: UsageError on every rank for a layer that is not `balanced`, slots that are not its
  ///         own, an expert without a slot, ranks that do not divide the slots or do not agree;
  ///         PeerError.
  void migrate(std::span<const std::int32_t> slot_experts);
  /// How often all ranks' tokens chose each expert in the forwards since the last call; the same
  /// on all ranks that have made the same calls. Between forwards. Errors: UsageError for a layer
  /// that is not `balanced`.
  std::vector<std::int64_t> take_counts();

  /// The slots that `rank` holds.
  Shard held_by(int rank) const;
  /// Which expert stands in which slot.
  const eplb::SlotMap& slots() const { return slots_; }
  /// The slots that serve a call's choices. Zero experts have numbers behind the slots, or -1 where
  /// the source adds them behind the sum.
  ///
  /// Shapes:  hidden [tokens] rows hidden_stride bytes apart, in the layer's dtype; ids, placed
  ///          [tokens, k].
  void place(std::int64_t tokens, const void* hidden, std::int64_t hidden_stride,
             std::span<const std::int32_t> ids, std::span<std::int32_t> placed) const;
  /// Rank `source`'s placed choices by this rank's numbers: -1 for a slot of others, whose weight
  /// is then 0. Zero experts count on the rank that adds them to its share.
  ///
  /// Shapes:  ids, weights, local_ids, local_weights [size].
  void localise(std::span<const std::int32_t> ids, std::span<const float> weights, int source,
                std::int32_t* local_ids, float* local_weights) const;
  /// This rank's number of every id that routing gives, zero and fused shared experts included, or
  /// -1, as place() and localise() have it where each expert stands in one slot. Experts of which
  /// the rank holds no column are skipped: their rows would be zero.
  std::vector<std::int32_t> local_numbers() const;

 private:
  struct Scratch;
  struct Rows;
  struct Finisher;
  struct Chunk {
    std::int64_t first, tokens, number;
  };
  Scratch take_scratch(Arena& arena) const;
  void note(RankStep step) const {
    if (options_.listener.step != nullptr) options_.listener.step(options_.listener.context, step);
  }
  void start_set();
  std::int64_t chunk() const;
  void make_exchange();
  void make_reduction();
  void make_device_end();
  void make_mega();
  void make_ending();
  void find_input(const ForwardArgs& a, Scratch& scratch) const;
  void run_rows(const Rows& rows, const Scratch& scratch) const;
  void encode_shares(const Rows& rows, const Scratch& scratch) const;
  void run_received(const comm::Received& in, const Scratch& scratch) const;
  bool adds_zero_experts(int source) const;
  void run_block(int b, const ForwardArgs& a, Scratch& scratch) const;
  bool exchange_chunk(const ForwardArgs& a, const Chunk& chunk, Scratch& scratch);
  void exchange(const ForwardArgs& a, Scratch& scratch);
  void run_batch(const MegaBatch& batch, const Scratch& scratch) const;
  void fuse(const ForwardArgs& a, Scratch& scratch);
  void reduce(const ForwardArgs& a, Scratch& scratch);
  void finish_fused(const ForwardArgs& a, Scratch& scratch, const BehindLayer* behind);
  Finisher finisher(const ForwardArgs& a, const Scratch& scratch) const;
  void end_latent(const ForwardArgs& a, const Scratch& scratch) const;
  void count_choices(const ForwardArgs& a, Scratch& scratch);
  void see_counts(const Scratch& scratch);
  void gather_counts(const std::int32_t* stats);
  void gather_fused_counts();
  void guarded_run(const ForwardArgs& a, const BehindLayer* behind);
  void run(const ForwardArgs& a, const BehindLayer* behind);

  comm::Group& group_;
  RankOptions options_;
  std::int64_t num_experts_;
  std::shared_ptr<CallOrder> order_;  // of the layers that share ends; null: it shares none
  std::int64_t number_ = 0;           // among them
  eplb::SlotMap slots_;
  comm::Wire wire_;
  bool needs_calibration_ = false;
  std::unique_ptr<Layer> layer_;
  ops::FfnShape shape_;         // of the experts' calls: as many ids per row as arrive
  TacticList tactics_;          // tuned for such calls
  tune::Tape* tape_ = nullptr;  // of the running forward, as its trace; null: none
  Trace* trace_ = nullptr;
  Payload payload_;
  // Of other layers too, where they are shared.
  std::shared_ptr<comm::Exchange> exchange_;    // under dep
  std::shared_ptr<MegaMoe> mega_;               // under dep, where the strategy is the fused one
  std::shared_ptr<comm::Reduction> reduction_;  // else
  std::shared_ptr<FusedEnd> fused_;             // behind its experts, where it does not end plainly
  std::unique_ptr<DeviceEnd> device_;           // on cuda, in place of all of these
  // Of a balanced layer.
  std::shared_ptr<std::vector<std::int32_t>> table_;  // what the part's source reads slots by
  std::shared_ptr<ExpertUpdates> updates_;            // by expert, on every rank
  std::unique_ptr<SlotMover> mover_;
  std::vector<std::int64_t> counts_;  // [num_experts]
  eplb::Cycle cycle_;
};

/// Whether ranks can serve such a layer: shared experts are fused under ttp only.
Eligibility can_spread(const Problem& problem, const Deployment& deployment);

}  // namespace switchyard::layer
