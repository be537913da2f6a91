// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "switchyard/base/device.h"
#include "switchyard/base/span2d.h"
#include "switchyard/core/environment.h"
#include "switchyard/core/tactic.h"

namespace switchyard {

namespace tune {
class Tape;  // tune/tape.h
}

/// Caller's routing; exactly one of the two weight fields may be set.
struct CallerRouting {
  const std::int32_t* ids = nullptr;        // [tokens, k]; -1 skips, on cuda others outside too
  const float* weights = nullptr;           // without routed_scaling_factor
  const float* factored_weights = nullptr;  // the factor is in them already: finalize skips it
};

/// Output before finalize, for a caller that fuses the rest.
///
/// Shapes:  rows [tokens * k, hidden] in the layer's dtype, (token, choice) order; weights [tokens,
/// k]
///          (1 where the weight is on the input); index [tokens, k] row or -1; shared [tokens,
///          hidden] in the layer's dtype, or null when the layer has no shared expert.
struct Unfinalised {
  void* rows = nullptr;
  float* weights = nullptr;
  std::int32_t* index = nullptr;
  void* shared = nullptr;
  float pending_factor = 1;  // written: what finalize still has to multiply
};

/// Stage outputs that a forward writes when asked; the oracle reads them to judge code flips.
///
/// Shapes:  rows in (token, choice) order (fused shared experts count as choices), rows of skipped
///          choices stay as they were: inter [tokens * choices, I], the dequantised input of FC2;
///          gate, up [tokens * choices, I], what FC1 gave (gate untouched for one-projection
///          kinds); shared_inter [tokens, shared I] likewise; latent [tokens, L], what latent
///          experts read.
struct StageCapture {
  double* inter = nullptr;
  float* gate = nullptr;
  float* up = nullptr;
  double* shared_inter = nullptr;
  float* latent = nullptr;
};

/// What really ran, written by the forward itself; a test compares it with the plan. The names live
/// as long as the layer.
struct Trace {
  std::string_view leaf;           // identity of what executed the routed experts
  std::string_view shared_leaf;    // of the shared expert; empty when there is none or it is fused
  CpuIsa isa = CpuIsa::kPortable;  // the tier of the twin that ran, not of the machine
  bool routed_here = false;
  bool fused_shared = false;
  std::optional<TacticUse> experts, shared;  // of the last call of each that had tokens
};

/// One call. On cuda every pointer to tokens, routing, outputs and workspace is device memory;
/// `trace` and the struct `unfinalised` itself stay the host's.
///
/// Shapes:  hidden [tokens, H] with stride, in the layer's dtype; logits [tokens, E+Z] fp32 or
/// empty
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
  std::int32_t* ids_out = nullptr;  // [tokens, k] chosen ids, or null
  float* weights_out = nullptr;     // [tokens, k], or null
  StageCapture* capture = nullptr;
  Trace* trace = nullptr;
  tune::Tape* tape = nullptr;  // notes the tunable calls, or says what they run; null: neither
  Stream stream{};  // on cuda: where everything is enqueued; the forward does not wait for it
  std::span<std::byte> workspace;
};

}  // namespace switchyard
