// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/tile.h"
#include "switchyard/ops/route/route.h"

/// The stages of the CUDA twin around its two GEMMs. All arrays are device memory. Errors of all:
/// DeviceError when the launch fails or the build has no CUDA.
namespace switchyard::ops {

/// Sorts the (token, choice) rows by expert, stable; skipped and zero-expert choices are left out.
/// An id outside the table counts as -1. Each expert starts at a multiple of 8.
///
/// Shapes:  ids [tokens * top_k]; offsets [experts + 1], counts [experts]: first sorted row and
/// rows
///          of each expert; source [sorted_capacity()]: the choice of a sorted row, -1 between
///          experts; sorted_of [tokens * top_k]: the sorted row of a choice, or -1; arrivals
///          [num_arrivals], or null: become 0, for FC1's end to count in.
struct DeviceSort {
  const std::int32_t* ids = nullptr;
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t experts = 0;
  std::int32_t* offsets = nullptr;
  std::int32_t* counts = nullptr;
  std::int32_t* source = nullptr;
  std::int32_t* sorted_of = nullptr;
  std::int32_t* arrivals = nullptr;
  std::int64_t num_arrivals = 0;
};

/// Enqueues what a sort without any expert leaves. Shapes: sorted_of [count], which become -1.
void skip_rows_cuda(std::int32_t* sorted_of, std::int64_t count, Stream stream);

/// Where quantised rows go.
///
/// Shapes:  tiles: the values, columns up to whole tiles become 0; token_scales [capacity]: written
/// by
///          the kinds that have one scale per row, static ones included, else not read;
///          block_scales [ceil(cols / 128)][capacity]: of the two 1 x 128 kinds. Null where the
///          kind has none.
struct DeviceRows {
  RowTiles tiles;
  float* token_scales = nullptr;
  float* block_scales = nullptr;
};

/// Copies the tokens of the sorted rows to where the GEMM reads them, quantised: padded with 0 to
/// whole tiles, times the routing weight where that stands on the input (one fp32 product).
///
/// Shapes:  x [tokens, hidden] of dtype bf16 or fp16; weights [tokens * top_k], or null for a plain
///          copy. static_scale is read by static quantisers.
struct DeviceGather {
  const std::uint16_t* x = nullptr;
  Dtype dtype = Dtype::kBf16;
  std::int64_t x_stride = 0;
  std::int64_t hidden = 0;
  const float* weights = nullptr;
  formats::ActivationQuant quant = formats::ActivationQuant::kNone;
  float static_scale = 1;
  DeviceRows out;
};

/// Enqueues both: one launch for few tokens, two for many.
void sort_and_gather_cuda(const DeviceSort& sort, const DeviceGather& gather, Stream stream);
/// Routes few tokens too, all in one launch: the bits of route_cuda() and then
/// sort_and_gather_cuda().
///
/// Shapes:  route.ids and route.weights are what the sort and the layer's end read; its logits are
///          [sort.tokens, experts and zero experts].
/// Errors:  InternalError for a call that routing_launch() keeps apart.
void route_and_arrange_cuda(const RouteArgs& route, const DeviceSort& sort,
                            const DeviceGather& gather, Stream stream);

/// Quantises FC1's fp32 rows for FC2, for ends_in_rows().
///
/// Shapes:  rows [*, stride] fp32, sorted; offsets, source as DeviceSort writes them.
struct DeviceQuantize {
  const float* rows = nullptr;
  std::int64_t stride = 0;
  std::int64_t cols = 0;
  const std::int32_t* end = nullptr;  // behind the last sorted row
  const std::int32_t* source = nullptr;
  formats::ActivationQuant quant = formats::ActivationQuant::kNone;
  DeviceRows out;
  bool sorted_early = false;  // end and source stand since before the launch in front of this one
};
/// Enqueues the quantiser.
void quantize_rows_cuda(const DeviceQuantize& args, Stream stream);

/// Decodes FC2's input into (token, choice) order: what StageCapture::inter wants.
///
/// Shapes:  rows as the quantiser left them; static_scale: expert e's fp32 at + e * stride bytes,
/// or
///          null; out [choices, cols] double, rows of skipped choices stay as they were.
struct DeviceCapture {
  DeviceRows rows;
  const std::byte* static_scale = nullptr;
  std::int64_t stride = 0;
  const std::int32_t* sorted_of = nullptr;
  const std::int32_t* ids = nullptr;
  std::int64_t choices = 0;
  std::int64_t cols = 0;
  double* out = nullptr;
};
/// Enqueues the copy; for judges.
void capture_rows_cuda(const DeviceCapture& args, Stream stream);

/// out[t] = round(factor * sum_j w[t, j] * rows[sorted_of[t, j]] + addend[t]), fp32 inside, in
/// choice order; unscaled choices join after the factor, zero experts return the token.
///
/// Shapes:  rows [*, rows_stride] fp32, rows_stride a multiple of 4; addend [tokens, hidden] or
///          null; out [tokens, out_stride]. Otherwise as FfnArgs.
/// Units:   sorted_early: sorted_of, ids and weights stand since before the launch in front of this
///          one.
struct DeviceFinalize {
  const float* rows = nullptr;
  std::int64_t rows_stride = 0;
  const std::int32_t* sorted_of = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  std::int64_t top_k = 0;
  std::int64_t unscaled_choices = 0;
  std::int64_t experts = 0;
  std::int64_t zero_experts = 0;
  bool weight_on_input = false;
  float factor = 1;
  const std::uint16_t* x = nullptr;
  Dtype x_dtype = Dtype::kBf16;
  std::int64_t x_stride = 0;
  const float* addend = nullptr;
  Dtype out_dtype = Dtype::kBf16;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  bool sorted_early = false;
};
/// Enqueues the sum.
void finalize_cuda(const DeviceFinalize& args, Stream stream);
/// Enqueues the unfinalised output instead: `out` [tokens * top_k, hidden] dense, each row rounded
/// once; rows of skipped choices stay as they were.
void write_rows_cuda(const DeviceFinalize& args, Stream stream);

/// Rows of fp32 in a 16-bit dtype, each value rounded once.
///
/// Shapes:  rows [count] fp32, out [count] of dtype.
struct DeviceRounding {
  const float* rows = nullptr;
  std::int64_t count = 0;
  Dtype dtype = Dtype::kBf16;
  void* out = nullptr;
};
/// Enqueues the rounding.
void round_rows_cuda(const DeviceRounding& args, Stream stream);

/// Rows that lie dense, to where they lie apart.
///
/// Shapes:  from [rows, cols] dense, to [rows] rows stride apart; 16 bits an element; no overlap.
struct DeviceCopy {
  const std::uint16_t* from = nullptr;
  std::uint16_t* to = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
};
/// Enqueues the copy.
void copy_rows_cuda(const DeviceCopy& args, Stream stream);

/// Rows by choice as rows by expert, as the fused all-reduce's reduction (pattern 6) reads them.
///
/// Shapes:  rows [tokens * top_k, hidden] of 16-bit elements; ids, weights [tokens, top_k]: local
///          experts, or any other number for what is not one, and weights null for all 1; dense
///          [experts, tokens, hidden], whose rows stay as they were where a token has not chosen
///          the expert; scales [experts, tokens], 0 there. Of a token's choices of one expert the
///          last counts.
struct DeviceSpread {
  const std::uint16_t* rows = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t hidden = 0;
  std::int64_t experts = 0;
  std::uint16_t* dense = nullptr;
  float* scales = nullptr;
};
/// Enqueues it.
void spread_rows_cuda(const DeviceSpread& args, Stream stream);

/// The shared expert's weight per token: sigmoid(x . gate), 1 where `gate` is null.
///
/// Shapes:  x [tokens, hidden] of dtype; gate [hidden] or null; ids [tokens] become 0; weights
/// [tokens].
struct DeviceSharedGate {
  const std::uint16_t* x = nullptr;
  Dtype dtype = Dtype::kBf16;
  std::int64_t x_stride = 0;
  std::int64_t tokens = 0;
  std::int64_t hidden = 0;
  const float* gate = nullptr;
  std::int32_t* ids = nullptr;
  float* weights = nullptr;
};
/// Enqueues the dot products.
void shared_gate_cuda(const DeviceSharedGate& args, Stream stream);

}  // namespace switchyard::ops
