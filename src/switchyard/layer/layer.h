// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "switchyard/base/host_buffer.h"
#include "switchyard/base/span2d.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/deployment.h"
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
  Progress progress;
};

/// Static activation scales; they multiply (dequantise).
///
/// Shapes:  fc2 [experts].
struct StaticScales {
  float fc1 = 1;
  std::vector<float> fc2;
};

/// Caller's routing; exactly one of the two weight fields may be set.
struct CallerRouting {
  const std::int32_t* ids = nullptr;        // [tokens, k]; -1 skips
  const float* weights = nullptr;           // without routed_scaling_factor
  const float* factored_weights = nullptr;  // the factor is in them already: finalize skips it
};

/// Output before finalize, for a caller that fuses the rest.
///
/// Shapes:  rows [tokens * k, hidden] in the layer's dtype, (token, choice) order; weights [tokens, k]
///          (1 where the weight is on the input); index [tokens, k] row or -1; shared [tokens, hidden]
///          in the layer's dtype, or null when the layer has no shared expert.
struct Unfinalised {
  void* rows = nullptr;
  float* weights = nullptr;
  std::int32_t* index = nullptr;
  void* shared = nullptr;
  float pending_factor = 1;  // written: what finalize still has to multiply
};

/// What really ran, written by the forward itself; a test compares it with the plan.
struct Trace {
  const leaves::Leaf* leaf = nullptr;
  const leaves::Leaf* shared_leaf = nullptr;
  CpuIsa isa = CpuIsa::kPortable;
  bool routed_here = false;
  bool fused_shared = false;
};

/// One call.
///
/// Shapes:  hidden [tokens, H] with stride, in the layer's dtype; logits [tokens, E+Z] fp32 or empty
///          (then the router computes them); token_ids [tokens] where routing needs them; out
///          [tokens, H] with stride or null; expert_counts [E+Z] added to, or null.
struct ForwardArgs {
  std::int64_t tokens = 0;
  const void* hidden = nullptr;
  std::int64_t hidden_stride = 0;
  Span2d<const float> logits;
  const std::int64_t* token_ids = nullptr;
  CallerRouting routing;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  Unfinalised* unfinalised = nullptr;
  std::int64_t* expert_counts = nullptr;
  std::int32_t* ids_out = nullptr;    // [tokens, k] chosen ids, or null
  float* weights_out = nullptr;       // [tokens, k], or null
  ops::FfnCapture* capture = nullptr;
  Trace* trace = nullptr;
  std::span<std::byte> workspace;
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
/// Immutable after calibrate(); forwards with distinct workspaces may be issued from several threads
/// and take turns on the pool.
class Layer {
 public:
  /// Packs every expert. Errors: UsageError for weights that contradict the problem or the leaf.
  Layer(checkpoint::LayerWeights weights, const LayerOptions& options);

  const Problem& problem() const { return weights_.problem; }
  const checkpoint::LayerWeights& weights() const { return weights_; }
  const ExpertBank& routed() const { return routed_; }
  const ExpertBank* shared() const { return shared_ ? &*shared_ : nullptr; }
  const LayerOptions& options() const { return options_; }
  /// Bytes of the packed experts, shared ones included.
  std::int64_t packed_bytes() const;
  /// True when a static quantiser has no scales yet: a forward then throws UsageError.
  bool needs_calibration() const { return needs_calibration_; }
  /// Sets the static scales from a run in f32 mode: amax with 5 % head room; FC1's over all experts,
  /// FC2's per expert, an expert that saw no token takes the layer's maximum.
  ///
  /// Shapes:  hidden [tokens, H] fp32 dense; token_ids [tokens] or null.
  void calibrate(std::int64_t tokens, const float* hidden, const std::int64_t* token_ids);
  /// Bytes that a forward of up to `max_tokens` tokens needs.
  std::size_t workspace_bytes(std::int64_t max_tokens) const;
  /// Runs the layer; allocates nothing. Errors: UsageError for a broken argument.
  void forward(const ForwardArgs& args) const;

 private:
  friend class SingleRank;

  checkpoint::LayerWeights weights_;
  LayerOptions options_;
  ExpertBank routed_;
  std::optional<ExpertBank> shared_;
  bool needs_calibration_ = false;
};

}  // namespace switchyard::layer
