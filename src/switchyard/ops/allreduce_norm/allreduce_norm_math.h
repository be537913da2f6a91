// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "switchyard/base/float_math.h"
#include "switchyard/base/host_device.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"

/// The formulas behind the sum over the ranks, shared by the CPU and the CUDA twin.
///
/// Every quantiser reads the norm as it is rounded to T. Divisions and square roots are IEEE ones;
/// nothing is contracted.
namespace switchyard::ops {

/// Partial sums of squares: element i belongs to lane i % kRmsLanes, each lane adds in order, and
/// lanes fold by halves. The tree depends on the width only, never on tokens, ranks or threads.
inline constexpr std::int64_t kRmsLanes = 256;

/// 1 / sqrt(mean + eps).
SWITCHYARD_HD inline float rms_rstd(float sum_of_squares, std::int64_t hidden, float eps) {
  return 1.0f / std::sqrt(sum_of_squares / float(hidden) + eps);
}

/// (p * rstd) * (weight_bias + gamma), before its rounding to T.
[[gnu::always_inline]] SWITCHYARD_HD inline float norm_value(float p, float rstd, float gamma,
                                                             float weight_bias) {
  return (p * rstd) * (weight_bias + gamma);
}

/// The scale of a token, which decodes: amax / 448, at least 2^-9 / 448. NaN stays NaN.
SWITCHYARD_HD inline float fp8_token_scale(float amax) {
  constexpr float kFloor = 0x1p-9f / formats::kE4m3Max;
  const float scale = amax / formats::kE4m3Max;
  return scale < kFloor ? kFloor : scale;
}

/// The E8M0 code of a group: the power of two that is >= max(amax / 448, 1e-10). NaN gives 255.
SWITCHYARD_HD inline std::uint8_t fp8_group_scale(float amax) {
  constexpr float kFloor = 1e-10f;
  const float scale = amax / formats::kE4m3Max;
  return formats::encode_e8m0_ceil(scale < kFloor ? kFloor : scale);
}

/// The E4M3 code of an NVFP4 block: e4m3(g * (amax * (1 / 6))). NaN gives 0x7F.
///
/// Source: the kernels that callers of `allreduce_fusion` come from; weights are quantised with a
/// division by 6 instead (formats::nvfp4_scale).
SWITCHYARD_HD inline std::uint8_t nvfp4_norm_scale(float amax, float g) {
  return formats::encode_e4m3(g * (amax * (1.0f / 6.0f)));
}

}  // namespace switchyard::ops
