// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/base/span2d.h"
#include "switchyard/core/activation.h"
#include "switchyard/core/environment.h"

namespace switchyard::ops {

/// What stands between the two expert projections, over rows that belong to one expert each.
///
/// Shapes:  gate, up, out [rows, inter], each with its own stride; kinds with one projection read
///          `up` and leave `gate` empty. out may be gate or up itself. expert_ids [rows] or null
///          (every row is expert 0's); params [num_params], one per expert or a single one for all.
///          All pointers lie on the device that runs the twin.
/// Units:   float; a row whose expert is -1 is written as zeros, whatever it holds.
struct ActivationArgs {
  ActivationParams kind;  // on the host: type, form and limit_after; the constants are in params
  Span2d<const float> gate;
  Span2d<const float> up;
  const std::int32_t* expert_ids = nullptr;
  const ActivationParams* params = nullptr;
  std::int64_t num_params = 0;
  Span2d<float> out;

  /// Checks shapes, strides and pointers. Errors: UsageError with field, value and limit.
  void check() const;
  /// Checks what the rows refer to: ids in -1..num_params-1 (any id >= -1 under a single constant
  /// set) and constants of this kind. Host memory only. Errors: UsageError with row, value, limit.
  void check_rows() const;
};

/// CPU twin over rows [row_begin, row_end); the caller checks once and shares rows among threads.
///
/// Shapes:  as ActivationArgs; row_begin <= row_end <= rows.
/// Errors:  never throws, never allocates.
void activation_cpu(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end);

/// The CPU twin as one instruction tier compiles it; every tier gives the same bits.
using ActivationRows = void (*)(const ActivationArgs&, std::int64_t row_begin,
                                std::int64_t row_end);
/// The best one up to `isa`.
ActivationRows activation_twin(CpuIsa isa);
/// As activation_cpu(); call it only where the environment has AVX2.
void activation_avx2(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end);
/// As activation_cpu(); call it only where the environment has AVX-512.
void activation_avx512(const ActivationArgs& args, std::int64_t row_begin, std::int64_t row_end);

/// CUDA twin, enqueued on `stream`; an expert id outside the table counts as -1.
///
/// Shapes:  as ActivationArgs, in device memory.
/// Errors:  UsageError from check(); DeviceError when the launch fails or the build has no CUDA.
void activation_cuda(const ActivationArgs& args, Stream stream);

/// The oracle: plain loops in double, each result rounded once to float.
///
/// Errors:  UsageError from check() and check_rows().
void activation_ref(const ActivationArgs& args);

/// The oracle's formula for one element, in double.
double activate_ref(const ActivationParams& params, double gate, double up);

}  // namespace switchyard::ops
