// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/ops/grouped_gemm/tile.h"

/// The stages of the CUDA twin around its two GEMMs. All arrays are device memory. Errors of all:
/// DeviceError when the launch fails or the build has no CUDA.
namespace switchyard::ops {

/// Sorts the (token, choice) rows by expert, stable; skipped and zero-expert choices are left out.
/// An id outside the table counts as -1. Each expert starts at a multiple of 8.
///
/// Shapes:  ids [tokens * top_k]; offsets [experts + 1], counts [experts]: first sorted row and
/// rows
///          of each expert; source [sorted_capacity()]: the choice of a sorted row, -1 between
///          experts; sorted_of [tokens * top_k]: the sorted row of a choice, or -1.
struct DeviceSort {
  const std::int32_t* ids = nullptr;
  std::int64_t tokens = 0;
  std::int64_t top_k = 0;
  std::int64_t experts = 0;
  std::int32_t* offsets = nullptr;
  std::int32_t* counts = nullptr;
  std::int32_t* source = nullptr;
  std::int32_t* sorted_of = nullptr;
};

/// Copies the tokens of the sorted rows to where the GEMM reads them: padded with 0 to whole tiles,
/// times the routing weight where that stands on the input (one fp32 product, one rounding).
///
/// Shapes:  x [tokens, hidden] bf16; weights [tokens * top_k], or null for a plain copy.
struct DeviceGather {
  const std::uint16_t* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t hidden = 0;
  const float* weights = nullptr;
  RowTiles out;
};

/// Enqueues both: one launch for few tokens, two for many.
void sort_and_gather_cuda(const DeviceSort& sort, const DeviceGather& gather, Stream stream);

/// out[t] = round(factor * sum_j w[t, j] * rows[sorted_of[t, j]] + addend[t]), fp32 inside, in
/// choice order; unscaled choices join after the factor, zero experts return the token.
///
/// Shapes:  rows [*, rows_stride] fp32, rows_stride a multiple of 4; addend [tokens, hidden] or
///          null; out [tokens, out_stride]. Otherwise as FfnArgs.
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
  std::int64_t x_stride = 0;
  const float* addend = nullptr;
  Dtype out_dtype = Dtype::kBf16;
  void* out = nullptr;
  std::int64_t out_stride = 0;
};
/// Enqueues the sum.
void finalize_cuda(const DeviceFinalize& args, Stream stream);
/// Enqueues the unfinalised output instead: `out` [tokens * top_k, hidden] dense, each row rounded
/// once; rows of skipped choices stay as they were.
void write_rows_cuda(const DeviceFinalize& args, Stream stream);

/// The shared expert's weight per token: sigmoid(x . gate), 1 where `gate` is null.
///
/// Shapes:  x [tokens, hidden] bf16; gate [hidden] or null; ids [tokens] become 0; weights
/// [tokens].
struct DeviceSharedGate {
  const std::uint16_t* x = nullptr;
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
