// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/base/dtype.h"
#include "switchyard/base/span2d.h"
#include "switchyard/base/thread_pool.h"
#include "switchyard/core/environment.h"

namespace switchyard::ops {

/// Router logits: logits = x . weight^T + bias; with norm_eps > 0, x is divided by
/// sqrt(mean(x^2) + norm_eps) first.
///
/// Shapes:  x [T, H] of `dtype` with row stride `x_stride`; weight [E+Z, H], dense; bias [E+Z] or
///          null; logits [T, E+Z] with its own stride. T may be 0.
/// Units:   strides in elements; x is read unrounded, products and sums are fp32 in an order that
///          depends on H only, so a row's logits do not depend on its batch.
struct RouterGemmArgs {
  Dtype dtype = Dtype::kBf16;
  const void* x = nullptr;
  std::int64_t x_stride = 0;
  std::int64_t hidden = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float norm_eps = 0;
  CpuIsa isa = CpuIsa::kPortable;  // what the CPU twin may use; its bits are the same on every tier
  Span2d<float> logits;

  /// Checks shapes, strides and pointers. Errors: UsageError with field, value and limit.
  void check() const;
};

/// The part of the logits that one call computes: rows and expert columns, both half open.
struct RouterTile {
  std::int64_t row_begin = 0, row_end = 0;
  std::int64_t expert_begin = 0, expert_end = 0;
};

/// CPU twin over one tile; the caller checks once and shares tiles among threads.
///
/// Errors:  never throws, never allocates.
void router_gemm_cpu(const RouterGemmArgs& args, const RouterTile& tile);

/// The whole product, cut into tiles of rows and experts so that one token uses every thread.
///
/// Errors:  UsageError from check(); allocates nothing.
void router_gemm_cpu(const RouterGemmArgs& args, ThreadPool& pool);

/// CUDA twin, enqueued on `stream`; bits are its own, in an order that depends on H only.
///
/// Shapes:  as RouterGemmArgs, in device memory.
/// Errors:  UsageError from check(); DeviceError when the launch fails or the build has no CUDA.
void router_gemm_cuda(const RouterGemmArgs& args, Stream stream);

/// The oracle: plain loops in double, each logit rounded once.
///
/// Errors:  UsageError from check().
void router_gemm_ref(const RouterGemmArgs& args);

}  // namespace switchyard::ops
