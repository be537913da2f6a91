// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/base/float_math.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"

/// Four columns at a time of what a layer returns; for .cu files only.
namespace switchyard::ops::sm90 {

/// Four columns of one token.
struct Columns {
  float v[4] = {0, 0, 0, 0};

  /// Adds a weighed row.
  __device__ void add(float weight, const float4& row) {
    v[0] += weight * row.x, v[1] += weight * row.y, v[2] += weight * row.z, v[3] += weight * row.w;
  }
  /// Multiplies what is there so far.
  __device__ void scale(float factor) {
    for (float& x : v) x *= factor;
  }
};

/// Of 16 bits.
__device__ inline float element(Dtype dtype, std::uint16_t bits) {
  return dtype == Dtype::kFp16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

/// To 16 bits.
__device__ inline std::uint32_t rounded(Dtype dtype, float v) {
  return dtype == Dtype::kFp16 ? float_to_fp16(v) : float_to_bf16(v);
}

/// Of the token itself, 0 behind its end.
__device__ inline float4 token_columns(const DeviceFinalize& a, std::int64_t t, std::int64_t col) {
  float v[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i)
    if (col + i < a.hidden) v[i] = element(a.x_dtype, a.x[t * a.x_stride + col + i]);
  return {v[0], v[1], v[2], v[3]};
}

/// The first `valid` of four, rounded, at element `at` of the output.
__device__ inline void store_columns(const DeviceFinalize& a, std::int64_t at, std::int64_t valid,
                                     const float* v) {
  if (a.out_dtype == Dtype::kF32) {
    for (int i = 0; i < 4; ++i)
      if (i < valid) static_cast<float*>(a.out)[at + i] = v[i];
    return;
  }
  auto* out = static_cast<std::uint16_t*>(a.out) + at;
  const bool whole = valid >= 4 && reinterpret_cast<std::uintptr_t>(out) % 8 == 0;
  if (whole) {
    const std::uint32_t low = rounded(a.out_dtype, v[0]) | rounded(a.out_dtype, v[1]) << 16;
    const std::uint32_t high = rounded(a.out_dtype, v[2]) | rounded(a.out_dtype, v[3]) << 16;
    *reinterpret_cast<uint2*>(out) = make_uint2(low, high);
    return;
  }
  for (int i = 0; i < 4; ++i)
    if (i < valid) out[i] = std::uint16_t(rounded(a.out_dtype, v[i]));
}

}  // namespace switchyard::ops::sm90
