// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/base/dtype.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/core/environment.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {

/// What one unquantised projection computes, apart from values.
///
/// Units:   widths in elements.
struct ProjectionShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  formats::WeightLayout weights;  // bf16 or fp16 without scales
  Dtype dtype = Dtype::kBf16;     // what the GEMM's input is rounded to
  bool rounds = true;             // false: f32 mode, nothing is rounded

  /// The packed geometry. Errors: UsageError for weights with scales or of another element.
  PanelLayout layout() const;
};

/// Packs `w` [out, in]; repeatable, never in place.
///
/// Shapes:  packed [shape.layout().code_bytes()], starting on a 64-byte boundary.
/// Errors:  UsageError naming `what` when the matrix does not have the shape or storage of `shape`.
void pack_projection(const ProjectionShape& shape, const char* what, const formats::Matrix& w,
                     std::span<std::byte> packed);

/// One call: out[t] = round(q(norm(x[t])) . w^T + addend[t]), fp32 inside.
///
/// norm is x / sqrt(mean(x^2) + norm_eps) * norm in fp32, the mean summed in an order that depends
/// on the width only; q rounds to the shape's dtype. A row's bits do not depend on its batch.
/// Shapes:  x [tokens, in] with x_stride; norm [in] or null; addend [tokens, out] dense or null;
///          out [tokens, out] with out_stride. tokens may be 0.
/// Units:   strides in elements.
/// Errors:  UsageError for a broken argument or a workspace that is too small.
struct ProjectionArgs {
  const ProjectionShape* shape = nullptr;
  const std::byte* packed = nullptr;
  std::int64_t tokens = 0;
  Dtype x_dtype = Dtype::kBf16;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  const float* norm = nullptr;
  float norm_eps = 0;
  const float* addend = nullptr;
  Dtype out_dtype = Dtype::kBf16;
  void* out = nullptr;
  std::int64_t out_stride = 0;
  ThreadPool* pool = nullptr;
  CpuIsa isa = CpuIsa::kPortable;
  std::span<std::byte> workspace;

  void check() const;
};

/// Bytes of workspace that a call of up to `max_tokens` tokens needs.
std::size_t projection_workspace_bytes(const ProjectionShape& shape, std::int64_t max_tokens,
                                       int threads);
/// The CPU twin on the panel GEMM of its tier. Allocates nothing.
void projection_cpu(const ProjectionArgs& args);

/// The oracle: plain loops in double on the canonical weights, the same rounding of the input.
///
/// Shapes:  x [tokens, in]; out [tokens, out], nothing added.
struct ProjectionRefArgs {
  const ProjectionShape* shape = nullptr;
  const formats::Matrix* weight = nullptr;
  std::int64_t tokens = 0;
  const double* x = nullptr;
  const float* norm = nullptr;
  float norm_eps = 0;
  double* out = nullptr;
  ThreadPool* pool = nullptr;  // null: the calling thread alone
};

/// Runs the oracle; may allocate, is slow, shares no kernel with the twins.
void projection_ref(const ProjectionRefArgs& args);

}  // namespace switchyard::ops
