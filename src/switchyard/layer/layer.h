// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/base/span2d.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/forward.h"
#include "switchyard/layer/latent.h"
#include "switchyard/leaves/leaf.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"

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
  std::shared_ptr<ThreadPool> pool;
  std::int64_t memory_bytes = 0;  // packed weights beyond this are refused; 0: no limit is known
  Progress progress;
};

/// Static activation scales; they multiply (dequantise).
///
/// Shapes:  fc2 [experts].
struct StaticScales {
  float fc1 = 1;
  std::vector<float> fc2;
};

/// One packed set of experts: the routed ones, or the shared one.
struct ExpertBank {
  ops::FfnShape shape;
  ops::ExpertLayout layout;
  HostBuffer packed;
  StaticScales scales;
  std::vector<ActivationParams> activation;
};

/// One MoE layer on one rank: routing, experts, shared expert, finalize.
///
/// Immutable after calibrate(); forwards with distinct workspaces may be issued from several
/// threads and take turns on the pool.
class Layer {
 public:
  /// Packs every expert. Errors: UsageError for weights that contradict the problem or the leaf.
  Layer(checkpoint::LayerWeights weights, const LayerOptions& options);

  /// The complete problem, modes included.
  const Problem& problem() const { return weights_.problem; }
  /// The canonical weights; experts are still read lazily, for the oracle.
  const checkpoint::LayerWeights& weights() const { return weights_; }
  /// The packed routed experts, fused shared ones behind them.
  const ExpertBank& routed() const { return routed_; }
  /// The packed shared expert; null when there is none or it is fused.
  const ExpertBank* shared() const { return shared_ ? &*shared_ : nullptr; }
  /// The packed latent projections; null when the experts work in the hidden width.
  const LatentBank* latent() const { return latent_ ? &*latent_ : nullptr; }
  /// Identity of the leaf that runs the routed experts.
  const std::string& leaf_id() const { return leaf_id_; }
  /// Identity of the leaf that runs the shared expert; empty when there is none or it is fused.
  const std::string& shared_leaf_id() const { return shared_leaf_id_; }
  /// What it was built with.
  const LayerOptions& options() const { return options_; }
  /// Bytes of the packed experts, shared ones included.
  std::int64_t packed_bytes() const;
  /// True when a static quantiser has no scales yet: a forward then throws UsageError.
  bool needs_calibration() const { return needs_calibration_; }
  /// Sets the static scales from a run in f32 mode: amax with 5 % head room; FC1's over all
  /// experts, FC2's per expert, an expert that saw no token takes the layer's maximum.
  ///
  /// Shapes:  hidden [tokens, H] fp32 dense; token_ids [tokens] or null.
  void calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids);
  /// Bytes that a forward of up to `max_tokens` tokens needs.
  std::size_t workspace_bytes(std::int64_t max_tokens) const;
  /// Runs the layer; allocates nothing. Errors: UsageError for a broken argument.
  void forward(const ForwardArgs& args) const;

 private:
  checkpoint::LayerWeights weights_;
  LayerOptions options_;
  ExpertBank routed_;
  std::optional<ExpertBank> shared_;
  std::optional<LatentBank> latent_;
  bool needs_calibration_ = false;
  std::string leaf_id_, shared_leaf_id_;
};

}  // namespace switchyard::layer
