// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/span2d.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/activation.h"
#include "switchyard/core/environment.h"
#include "switchyard/core/forward.h"
#include "switchyard/core/tactic.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {

struct RouteArgs;

/// What a grouped expert FFN computes, apart from values: the key of packing and of workspace.
///
/// Units:   widths in elements; `experts` counts the packed ones (slots under EPLB). An `inter` of
///          0 is an empty TP shard: its rows are zero.
struct FfnShape {
  std::int64_t hidden = 0;
  std::int64_t inter = 0;        // of what is packed
  std::int64_t inter_begin = 0;  // where that begins in the whole expert, for a TP shard
  std::int64_t experts = 0;
  std::int64_t zero_experts = 0;  // ids experts .. experts + zero_experts - 1 return the token
  std::int64_t top_k = 0;
  std::int64_t unscaled_choices =
      0;  // the last ones: added after the factor (fused shared experts)
  bool gated = true;
  bool bias = false;
  bool weight_on_input = false;
  formats::WeightLayout weights;                                     // of the whole expert
  formats::ActivationQuant quant = formats::ActivationQuant::kNone;  // in front of both GEMMs
  Dtype dtype = Dtype::kBf16;                                        // what kNone rounds to

  /// Layout of gate and up from row inter_begin on.
  formats::WeightLayout fc1_weights() const;
  /// Layout of down from column inter_begin on: K is cut at every boundary of its scale blocks.
  formats::WeightLayout fc2_weights() const;
};

/// Byte offsets of one packed expert; every part starts on a 64-byte boundary.
///
/// Shapes:  floats: alphas of gate, up and down, then FC2's static input scale; biases padded to
/// whole
///          panels, absent ones take no bytes.
struct ExpertLayout {
  PanelLayout fc1;  // gate, and up in the same shape
  PanelLayout fc2;
  std::size_t gate_codes = 0, gate_scales = 0, up_codes = 0, up_scales = 0;
  std::size_t down_codes = 0, down_scales = 0;
  std::size_t floats = 0, gate_bias = 0, up_bias = 0, down_bias = 0;
  std::size_t bytes = 0;
};

/// The packed geometry of each expert of `shape`.
/// Errors: UsageError when the weight layout has no panel codec.
ExpertLayout expert_layout(const FfnShape& shape);

/// Packs one canonical expert. Public and repeatable: source and destination, never in place.
///
/// Shapes:  packed [layout.bytes], starting on a 64-byte boundary.
/// Units:   fc2_input_scale multiplies (dequantises); 1 when the quantiser is not static.
/// Errors:  UsageError when a matrix does not have the shape or layout that `shape` says.
void pack_expert(const FfnShape& shape, const ExpertLayout& layout,
                 const checkpoint::ExpertWeights& expert, float fc2_input_scale,
                 std::span<std::byte> packed);

/// Where a forward finds its input rows, when they do not lie behind one pointer in steps of a
/// stride, or are quantised already.
///
/// Shapes:  rows [tokens]: where each begins, hidden states of x_dtype or, when `quantised`, codes
///          as quantize_rows_to_codes() writes them; scales [tokens] of the latter, or null where
///          the quantiser has none.
struct FfnInputRows {
  const std::byte* const* rows = nullptr;
  const std::byte* const* scales = nullptr;
  bool quantised = false;
};

/// One forward of routed (or shared) experts: quantise, FC1, activation, quantise, FC2, combine.
///
/// out[t] = round(factor * sum_j weights[t, j] * expert(ids[t, j])(x[t]) + addend[t]), fp32 inside,
/// the sum in choice order; unscaled choices join after the factor. With `rows` set, the unweighted
/// expert rows are written instead, rounded once. Shapes:  x [tokens, hidden] with x_stride; ids,
/// weights [tokens, top_k] dense; addend [tokens, hidden]
///          dense or null; out [tokens, hidden] with out_stride, or null; rows [tokens * top_k,
///          hidden] dense or null; workspace as ffn_workspace_bytes() says. tokens may be 0; id -1
///          skips.
/// Units:   strides in elements.
/// Errors:  UsageError for an id out of range, a workspace that is too small, or a tactic that is
///          none of this call's.
struct FfnArgs {
  const FfnShape* shape = nullptr;
  const ExpertLayout* layout = nullptr;
  const std::byte* packed = nullptr;  // [experts, layout->bytes]
  float fc1_input_scale = 1;
  const ActivationParams* activation = nullptr;  // [experts]
  std::int64_t tokens = 0;
  Dtype x_dtype = Dtype::kBf16;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  FfnInputRows x_rows{};  // set: in place of x; only the CPU reads it
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const RouteArgs* route = nullptr;  // set: the call routes into ids and weights; only cuda does
  float factor = 1;
  const float* addend = nullptr;
  Dtype out_dtype = Dtype::kBf16;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  Dtype rows_dtype = Dtype::kBf16;
  void* rows = nullptr;
  StageCapture* capture = nullptr;
  const Tactic* tactic = nullptr;  // null: the plan's
  ThreadPool* pool = nullptr;
  CpuIsa isa = CpuIsa::kPortable;
  Stream stream{};  // of a CUDA twin; the CPU reads the pool instead
  std::span<std::byte> workspace;

  void check() const;
};

/// Whether the input of such experts can be quantised ahead of a forward, by whoever sends it: the
/// quantiser stands in front of FC1 alone, and its codes hold all that FC1 reads.
bool quantises_ahead(const FfnShape& shape);

/// What the tactics of a call depend on, beside the kernels themselves.
struct FfnCall {
  const FfnShape* shape = nullptr;
  std::int64_t tokens = 0;
  int threads = 1;  // of a CPU, as its tier
  CpuIsa isa = CpuIsa::kPortable;
};

/// The tactic that a call runs when nobody chooses another.
Tactic plan_panels(const FfnCall& call);
/// The plan's tactic and those that are worth a try beside it, the plan's first. Pure.
std::vector<Tactic> panel_candidates(const FfnCall& call);
/// Errors: UsageError, naming tactic, value and limit, for one that such a call cannot run.
void check_panel_tactic(const FfnCall& call, const Tactic& tactic);

/// Who runs a forward on a CPU, as far as its workspace depends on that.
struct CpuTeam {
  int threads = 1;
  CpuIsa isa = CpuIsa::kPortable;
};

/// Bytes of workspace that a forward of up to `max_tokens` tokens needs, whatever its tactic.
std::size_t ffn_workspace_bytes(const FfnShape& shape, const ExpertLayout& layout,
                                std::int64_t max_tokens, const CpuTeam& team);

/// The CPU twin: every format, one panel GEMM per instruction tier. Allocates nothing.
void grouped_ffn_cpu(const FfnArgs& args);

/// How a leaf's format is executed on one device; a leaf points at one.
struct ExpertFfn {
  ExpertLayout (*layout)(const FfnShape&);
  void (*pack)(const FfnShape&, const ExpertLayout&, const checkpoint::ExpertWeights&, float,
               std::span<std::byte>);
  std::size_t (*workspace_bytes)(const FfnShape&, const ExpertLayout&, std::int64_t,
                                 const CpuTeam&);
  void (*forward)(const FfnArgs&);
  Tactic (*plan)(const FfnCall&);
  std::vector<Tactic> (*candidates)(const FfnCall&);
  void (*check_tactic)(const FfnCall&, const Tactic&);
};

/// The panel kernels, which serve every format of the CPU.
inline constexpr ExpertFfn kPanelFfnCpu{expert_layout,     pack_expert, ffn_workspace_bytes,
                                        grouped_ffn_cpu,   plan_panels, panel_candidates,
                                        check_panel_tactic};

/// The oracle: plain loops in double on the canonical (not the packed) weights.
///
/// Shapes:  x [tokens, hidden] fp32, dense, holding the unrounded input; out [tokens, hidden] or
/// null;
///          rows [tokens * top_k, hidden] or null; inter [tokens * top_k, inter], written when
///          inter_out is set; a row is read instead of computed where inter_in is set and use_inter
///          says so (null: all).
/// Units:   everything double but the quantisers, which are the format's own on float.
struct FfnRefArgs {
  const FfnShape* shape = nullptr;
  const checkpoint::ExpertSource* expert = nullptr;
  float fc1_input_scale = 1;
  const float* fc2_input_scale = nullptr;  // [experts]
  const ActivationParams* activation = nullptr;
  std::int64_t tokens = 0;
  const float* x = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  double factor = 1;
  const double* addend = nullptr;
  double* out = nullptr;
  double* rows = nullptr;
  double* inter_out = nullptr;
  const double* inter_in = nullptr;
  const std::uint8_t* use_inter = nullptr;  // [tokens * top_k], non-zero: read inter_in
  ThreadPool* pool = nullptr;               // null: the calling thread alone
};

/// Runs the oracle; may allocate, is slow, shares no kernel with the twins.
void grouped_ffn_ref(const FfnRefArgs& args);

}  // namespace switchyard::ops
