// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/base/device.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/expert_load.h"
#include "switchyard/core/forward.h"
#include "switchyard/core/problem.h"
#include "switchyard/core/routing_launch.h"

namespace switchyard {

class Checkpoint;

namespace layer {
class Layer;
}

/// How a layer is to be built; every field that is left alone follows the checkpoint or the
/// machine.
struct BuildOptions {
  std::optional<std::string> format;  // converts the routed experts at load; absent: their own
  ActivationMode activations = ActivationMode::kFormat;
  std::optional<Dtype> dtype;    // hidden states and output; absent: bf16, and f32 in f32 mode
  std::optional<Device> device;  // a pin; absent: the CPU is asked first
  std::string leaf;              // a pin: an identity or a query over one; never degrades
  std::string prefer;            // a device or an ancestor's backend word; may degrade, loudly
  int threads = 0;               // 0: every CPU that the process may use
  /// Threads that layers share, whose forwards then take turns; null: `threads` of its own.
  std::shared_ptr<ThreadPool> pool;
  std::int64_t ep = 1;
  std::int64_t tp = 1;
  std::optional<Parallel> parallel;
  std::int64_t slots = 0;  // 0: as many as experts; more hold replicas, on several ranks
  std::optional<CombinePrecision> combine;
  std::string comm;  // a pin: an exchange strategy by our name or an ancestor's; empty: none
  bool fuse_shared = false;        // opt in to fused shared experts
  bool with_shared = true;         // false leaves the shared expert out
  bool with_parallel_mlp = false;  // Granite's shared_mlp joins the layer as its shared expert
  std::optional<std::int64_t> top_k;
  std::optional<float> routed_scaling_factor;
  /// Tokens to calibrate static scales on, [tokens, H] fp32; filled up to 256 with seeded ones.
  std::vector<float> calibration;
  std::string tuning;  // a table of tactics for this machine; empty: those that ship, if any
  std::uint64_t seed = 1;
  std::function<void(std::int64_t done, std::int64_t total)> progress;
};

/// A caller's unquantised layer, canonical order; the arrays are read during construction only.
///
/// Shapes:  H' is problem.latent, or H when that is 0. gate, up [E, I, H'] and down [E, H', I]
///          row-major in `dtype` (gate null for one-projection kinds); gate_bias, up_bias [E, I],
///          down_bias [E, H'] fp32 or null; router_weight [E+Z, H], router_bias, choice_bias [E+Z],
///          per_expert_scale [E] fp32 or null; hash_table [vocab, k]; latent_down [H', H] and
///          latent_up [H, H'] in `dtype`, latent_norm [H'] fp32 or null: for latent layers only.
struct LayerArrays {
  Problem problem;  // format is "none"; BuildOptions::format converts
  Dtype dtype = Dtype::kBf16;
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* down = nullptr;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  const float* router_weight = nullptr;
  const float* router_bias = nullptr;
  const float* choice_bias = nullptr;
  const float* per_expert_scale = nullptr;
  const std::int32_t* hash_table = nullptr;
  std::int64_t vocab = 0;
  const void* latent_down = nullptr;
  const void* latent_up = nullptr;
  const float* latent_norm = nullptr;
  float latent_norm_eps = 0;
};

/// One routed expert's unquantised weights, canonical order; the arrays are read during the call.
///
/// Shapes:  gate, up [I, H'] and down [H', I] row-major in `dtype` (gate null for one-projection
///          kinds); gate_bias, up_bias [I], down_bias [H'] fp32 or null.
/// Units:   the input scales multiply (dequantise); both or none, read where the format's are
///          static.
struct ExpertArrays {
  Dtype dtype = Dtype::kBf16;
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* down = nullptr;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  std::optional<float> fc1_input_scale = {};
  std::optional<float> fc2_input_scale = {};
};

/// One Mixture-of-Experts layer: route, experts, shared expert, finalize.
///
/// A handle: movable, not copyable. Forwards with distinct workspaces may be issued from several
/// threads and take turns on the layer's threads; an update may run beside them. Each forward runs
/// wholly before or wholly after each update, never on half of one.
class MoeLayer {
 public:
  /// Layer `index` of a checkpoint (its own layer index, not a running number).
  /// Errors: UsageError for bad weights or options; CannotServe when no leaf can.
  static MoeLayer from_checkpoint(const Checkpoint& checkpoint, std::int64_t index,
                                  const BuildOptions& options);
  /// A published shape with seeded random weights.
  static MoeLayer from_preset(std::string_view preset, const BuildOptions& options);
  /// The caller's own arrays.
  static MoeLayer from_arrays(const LayerArrays& arrays, const BuildOptions& options);

  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;
  ~MoeLayer();

  /// The complete problem, with the format and modes that the layer really has.
  const Problem& problem() const;
  /// Identity of the leaf that runs the routed experts.
  std::string leaf() const;
  /// The resolution report as canonical JSON.
  std::string report_json() const;
  /// Notices of loading and conversion, e.g. "F32 weights rounded to bf16".
  const std::vector<std::string>& notices() const;
  /// Bytes of one routed expert as its format stores it (not as packed), scales included.
  std::int64_t expert_stored_bytes() const;
  /// Bytes of memory that the packed weights take.
  std::int64_t packed_bytes() const;
  /// What a forward of `tokens` tokens chooses among ways that give the same bits, and who chose
  /// it: for the shared expert, if there is one, then for the routed ones. Errors: as forward().
  std::vector<CallTactic> tactics(std::int64_t tokens) const;
  /// Whether a forward of `tokens` tokens that routes does so in the launch that sorts and
  /// quantises them, and why not. Errors: as forward().
  RoutingLaunchReport routing_launch(std::int64_t tokens) const;
  /// Threads that a forward uses.
  int threads() const;

  /// Workspace that a forward of up to `max_tokens` tokens needs. Units: bytes, 64-byte aligned.
  /// Errors: UsageError unless 0 <= max_tokens <= 2^31 / choices.
  std::size_t workspace_bytes(std::int64_t max_tokens) const;
  /// Runs the layer; allocates nothing. Errors: UsageError for a broken argument, and the layer
  /// stays good for the next call.
  void forward(const ForwardArgs& args) const;

  /// Replaces the weights of routed expert `e` in place, converted to the layer's format if that is
  /// another. A later forward gives the bits of a layer built with them. Static scales: FC2's is
  /// the given one, else it stays; FC1's serves all experts and stays, a larger one is refused.
  /// Blocks until the forwards in flight have ended, and holds back new ones while it copies one
  /// expert. Memory: the layer keeps the newest weights of every replaced expert beside the packed
  /// ones, as its format stores them (expert_stored_bytes()), for verification; packed_bytes() does
  /// not count them, and what exceeds the memory limit together with it is refused. On a GPU the
  /// forwards in flight are all work that is enqueued there; a graph that was captured before reads
  /// the new weights when it is launched after, and no graph may be launched meanwhile, nor a
  /// stream be captured in the global mode.
  /// Errors:  UsageError that names what differs from the layer; the layer is then unchanged.
  void update_expert(std::int64_t e, const ExpertArrays& arrays);
  /// The same with expert `e` of layer `index` of a checkpoint, checked as a whole; adds notices().
  void update_expert(std::int64_t e, const Checkpoint& checkpoint, std::int64_t index);

  /// What the forwards asked of each expert since construction, judges and checks included.
  /// Errors: UsageError for a layer on cuda, which counts into ForwardArgs::expert_counts only.
  ExpertLoad expert_load() const;
  /// The same, and the counts start at zero again; no forward is lost between the two.
  ExpertLoad take_expert_load() const;

  /// The implementation, for the library's own judges.
  const layer::Layer& impl() const;

 private:
  struct State;
  explicit MoeLayer(std::unique_ptr<State> state);
  friend struct LayerBuilder;
  std::unique_ptr<State> state_;
};

/// No leaf can serve; the text is the one-line verdict, report_json() the whole report.
class CannotServe : public Error {
 public:
  /// `what`: one line; `report`: the resolution report as JSON; `reason`: where one verdict
  /// decided.
  CannotServe(const std::string& what, std::string report, std::optional<Reject> reason = {})
      : Error(what), report_(std::move(report)), reason_(reason) {}
  /// The complete resolution report as canonical JSON.
  const std::string& report_json() const { return report_; }
  /// Why, where one verdict decided.
  const std::optional<Reject>& reason() const { return reason_; }

 private:
  std::string report_;
  std::optional<Reject> reason_;
};

}  // namespace switchyard
