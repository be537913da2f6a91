// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/base/device_memory.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/base/span2d.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/forward.h"
#include "switchyard/core/shard.h"
#include "switchyard/core/tactic.h"
#include "switchyard/layer/expert_updates.h"
#include "switchyard/layer/latent.h"
#include "switchyard/layer/live_state.h"
#include "switchyard/leaves/leaf.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

namespace switchyard::tune {
class TacticBook;  // tune/table.h
}

namespace switchyard::layer {

/// Told how many of how many experts are packed; called from one thread at a time.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

/// How a layer is built; the leaves are the resolver's winners.
struct LayerOptions {
  const leaves::Leaf* leaf = nullptr;
  const leaves::Leaf* shared_leaf = nullptr;  // null when the layer has no shared expert
  ActivationMode activations = ActivationMode::kFormat;
  Dtype dtype = Dtype::kBf16;
  CpuIsa isa = CpuIsa::kPortable;
  bool fuse_shared = false;  // the shared experts become ids E .. E + n - 1
  Shard held{};              // size 0: all experts; else one rank's, for RankLayer
  Member tp{};               // whose columns of every held expert are packed
  Member shared_tp{};        // the same of the shared expert: all ranks in dtp, tep and ttp
  std::shared_ptr<ThreadPool> pool;
  std::shared_ptr<const tune::TacticBook> tactics;  // tuned choices; null: the planners' alone
  std::int64_t memory_bytes = 0;  // packed weights beyond this are refused; 0: no limit is known
  Progress progress;

  /// True for one rank's part of a layer, which has shares for an output.
  bool is_part() const { return held.size > 0 || tp.size > 1 || shared_tp.size > 1; }
  /// Checks the places in their groups. Errors: UsageError with rank and size.
  void check() const;
};

/// Static activation scales; they multiply (dequantise).
///
/// Shapes:  fc2 [experts].
struct StaticScales {
  float fc1 = 1;
  std::vector<float> fc2;
  std::vector<std::int64_t> unseen;  // experts that the calibration showed no token
};

/// Memory that packing took and gave back again; 0 where the host packs in place.
///
/// Units:   bytes.
struct PackingMemory {
  std::size_t device = 0, pinned = 0;
};

/// One packed set of experts: the routed ones, or the shared one.
struct ExpertBank {
  ops::FfnShape shape;
  ops::ExpertLayout layout;
  HostBuffer packed;  // empty on cuda
  StaticScales scales;
  std::vector<ActivationParams> activation;
  TacticList tactics;                                              // tuned for calls of this shape
  std::shared_ptr<DeviceMemory> device_packed, device_activation;  // null on the CPU
  PackingMemory packing;

  /// Units: bytes.
  std::int64_t packed_bytes() const { return shape.experts * std::int64_t(layout.bytes); }
};

/// One expert as a bank holds it, on its way into another bank's slot.
struct PackedExpert {
  std::int64_t slot = 0;                                 // of the bank
  float fc2_scale = 1;                                   // its static scale
  HostBuffer bytes;                                      // [layout.bytes]; empty for a bank on cuda
  std::shared_ptr<DeviceMemory> device_bytes = nullptr;  // [layout.bytes] in its place
};

/// A replacement that is packed and checked and stands nowhere yet.
struct PreparedUpdate {
  std::int64_t expert = 0;  // as update_expert() was told
  PackedExpert packed;
  checkpoint::ExpertWeights weights;  // whole
};

/// The router's tensors and the shared expert's gate in device memory; null where absent.
struct DeviceTables {
  std::shared_ptr<DeviceMemory> router_weight, logit_bias, choice_bias, per_expert_scale;
  std::shared_ptr<DeviceMemory> hash_table, shared_gate;
};

/// One MoE layer on one rank: routing, experts, shared expert, finalize. Or one rank's part of it:
/// some experts, some columns of their width, a shard of the shared expert; FC2's bias lies with
/// the first rank of a TP group, routing and latent projections are whole.
///
/// Forwards with distinct workspaces may be issued from several threads and take turns on the pool.
/// calibrate() and update_expert() may be called beside them: a forward runs wholly before or
/// wholly after such a change.
class Layer {
 public:
  /// Packs every expert. Errors: UsageError for weights that contradict the problem or the leaf.
  Layer(checkpoint::LayerWeights weights, const LayerOptions& options);
  /// The same layer with packed weights in memory of its own, from the same thread pool; updates of
  /// one leave the other as it is, loads are counted apart; the router's tables on a GPU are
  /// shared. Errors: UsageError when the system, DeviceError when the GPU refuses the memory.
  std::unique_ptr<Layer> copy() const;

  /// The complete problem, modes included.
  const Problem& problem() const { return weights_.problem; }
  /// The canonical weights; experts are still read lazily, for the oracle.
  const checkpoint::LayerWeights& weights() const { return weights_; }
  /// The packed routed experts, fused shared ones behind them; of a part, the held ones.
  const ExpertBank& routed() const { return routed_; }
  /// The packed shared expert; null when there is none or it is fused.
  const ExpertBank* shared() const { return shared_ ? &*shared_ : nullptr; }
  /// The packed latent projections; null when the experts work in the hidden width.
  const LatentBank* latent() const { return latent_ ? &*latent_ : nullptr; }
  /// Identity of the leaf that runs the routed experts.
  const std::string& leaf_id() const { return leaf_id_; }
  /// Identity of the leaf that runs the shared expert; empty when there is none or it is fused.
  const std::string& shared_leaf_id() const { return shared_leaf_id_; }
  /// The tables that a forward on cuda reads.
  const DeviceTables& tables() const { return tables_; }
  /// What it was built with.
  const LayerOptions& options() const { return options_; }
  /// Bytes of the packed experts, shared ones included.
  std::int64_t packed_bytes() const;
  /// The most memory that packing took beside them; the shared expert is packed after the others.
  PackingMemory packing() const;
  /// True when a static quantiser has no scales yet: a forward then throws UsageError.
  bool needs_calibration() const { return needs_calibration_; }
  /// Sets the static scales from a run in f32 mode: amax with 5 % head room; FC1's over all
  /// experts, FC2's per expert, an expert that saw no token takes the layer's maximum.
  ///
  /// Shapes:  hidden [tokens, H] fp32 dense; token_ids [tokens] or null.
  void calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids);
  /// Sets the static scales of one rank's part, which the ranks found together: those of
  /// calibrate() on all ranks' tokens. Shapes: scales.fc2 [packed experts].
  void set_scales(StaticScales scales);
  /// Replaces the weights of routed expert `e` in place; `expert` is the whole one, a part takes
  /// its columns. The next forward gives the bits of a layer built with them, where the static
  /// scales are the same; the oracle reads them too.
  ///
  /// Static scales: FC2's is the new expert's own. FC1's serves all experts and stays as it is: an
  /// expert that declares a larger one is refused, as it would change every other expert. An expert
  /// that declares none keeps the layer's (its predecessor's in FC2), calibrated on the old
  /// weights. `expert` must own its storage, or what it borrows must outlive the layer, which keeps
  /// it (one per expert, the newest) for the oracle. Errors: UsageError that names what differs
  /// from the layer; the layer is then unchanged.
  void update_expert(std::int64_t e, checkpoint::ExpertWeights expert);
  /// The first half of update_expert(): all that can fail but a GPU. Errors: as update_expert().
  PreparedUpdate prepare_update(std::int64_t e, checkpoint::ExpertWeights expert);
  /// Throws where the packed experts and `bytes` more of `what` exceed the memory that experts may
  /// fill. Errors: UsageError with both sizes and the limit, naming `call`.
  void check_room(std::string_view call, std::int64_t bytes, std::string_view what) const;
  /// The second half, for what was prepared from this layer since its last change. Errors:
  /// DeviceError when a GPU fails, before or in the middle of the copy.
  void commit_update(PreparedUpdate update);
  /// Puts packed experts of a layer of the same shape and leaf into slots of this part, all at once
  /// between two forwards; what update_expert() noted for these slots is forgotten, the part's
  /// source must give the new ones. Errors: InternalError for a slot or size that does not fit.
  void place_packed(std::span<const PackedExpert> experts);
  /// Raises FC1's static scale to `scale`, the maximum over the experts of all ranks; for the part
  /// of one rank, before its first forward.
  void raise_fc1_scale(float scale) { routed_.scales.fc1 = std::max(routed_.scales.fc1, scale); }
  /// Held while several calls must see the same weights; forward() must not be called under it.
  std::shared_lock<std::shared_mutex> reading() const { return gate_.reading(); }
  /// What the forwards asked of each expert so far.
  ExpertLoad expert_load() const { return load_.read(); }
  /// The same, and the counts start at zero again.
  ExpertLoad take_expert_load() const { return load_.take(); }
  /// Where forwards are counted; for schedulers.
  LoadCounter& load_counter() const { return load_; }
  /// Bytes that a forward of up to `max_tokens` tokens needs.
  std::size_t workspace_bytes(std::int64_t max_tokens) const;
  /// Runs the layer; allocates nothing. Errors: UsageError for a broken argument.
  void forward(const ForwardArgs& args) const;

 private:
  Layer() = default;
  void check_whole(std::string_view call) const;
  void put(const PackedExpert& expert);
  checkpoint::LayerWeights weights_;
  checkpoint::ExpertSource source_;  // as it was given: weights_.expert has the updates in front
  LayerOptions options_;
  ExpertBank routed_;
  std::optional<ExpertBank> shared_;
  std::optional<LatentBank> latent_;
  DeviceTables tables_;
  bool needs_calibration_ = false;
  std::shared_ptr<ExpertUpdates> updates_ = std::make_shared<ExpertUpdates>();
  std::mutex change_;  // calibrations and updates take turns
  UpdateGate gate_;
  mutable LoadCounter load_;
  std::string leaf_id_, shared_leaf_id_;
};

}  // namespace switchyard::layer
