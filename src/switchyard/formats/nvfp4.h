// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::formats {

/// Elements that share one E4M3 scale in NVFP4.
inline constexpr std::int64_t kNvfp4Block = 16;
/// Elements that share one E4M3 scale in w4a8_nvfp4_fp8's weights.
inline constexpr std::int64_t kNvfp4WideBlock = 32;
/// Largest product of an element and a block scale, 6 * 448: global scale = amax / 2688.
inline constexpr float kNvfp4Range = kE2m1Max * kE4m3Max;

/// NVFP4's weight layout: E2M1, E4M3 per 1 x 16, one fp32 scale per matrix.
inline constexpr WeightLayout kNvfp4Layout{.element = Element::kE2m1,
                                           .scale = ScaleType::kE4m3,
                                           .block_rows = 1,
                                           .block_cols = kNvfp4Block,
                                           .global_scale = true};
/// The same with a scale per 1 x 32, the weights of w4a8_nvfp4_fp8.
inline constexpr WeightLayout kNvfp4WideLayout{.element = Element::kE2m1,
                                               .scale = ScaleType::kE4m3,
                                               .block_rows = 1,
                                               .block_cols = kNvfp4WideBlock,
                                               .global_scale = true};

/// The encode scale g of a global scale that multiplies when decoding: 1 / global, rounded once.
SWITCHYARD_HD inline float nvfp4_encode_scale(float global) { return 1.0f / global; }

/// A block's scale code, e4m3((g * amax) / 6) with both operations rounded in fp32; NaN gives 0x7F.
SWITCHYARD_HD inline std::uint8_t nvfp4_scale(float amax, float g) {
  return encode_e4m3((g * amax) / kE2m1Max);
}

/// What a block's elements are multiplied by before e2m1: g / decode(scale), rounded in fp32; 0
/// when the scale is 0.
SWITCHYARD_HD inline float nvfp4_multiplier(float decoded_scale, float g) {
  return decoded_scale == 0.0f ? 0.0f : g / decoded_scale;
}

/// The global scale of a tensor, amax / 2688, which multiplies; 1 for a zero tensor and never below
/// 2^-126, so that its reciprocal is finite.
SWITCHYARD_HD inline float nvfp4_global_scale(float amax) {
  float scale = amax / kNvfp4Range;
  return amax == 0.0f ? 1.0f : scale < 0x1p-126f ? 0x1p-126f : scale;
}

/// One row's quantisation. `g` is the encode scale, the reciprocal of the global scale.
///
/// Shapes:  x [cols], cols even; codes [cols / 2], even column in the low nibble;
///          scales [ceil(cols / block)]; block is 16 or 32.
struct Nvfp4RowArgs {
  const float* x = nullptr;
  std::int64_t cols = 0;
  std::int64_t block = kNvfp4Block;
  float g = 1;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;

  /// Errors: UsageError for an odd or negative cols, another block, or a g that is not positive.
  void check() const;
};

/// Quantises one row. Where a block's scale is 0 all its elements are +0; a block with a NaN has
/// scale 0x7F; infinity saturates.
///
/// Errors:  as check().
void quantize_row_nvfp4(const Nvfp4RowArgs& args);

}  // namespace switchyard::formats
