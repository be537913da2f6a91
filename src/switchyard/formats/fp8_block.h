// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::formats {

/// Side of an FP8 weight block, and length of an FP8 activation block.
inline constexpr std::int64_t kFp8Block = 128;
/// Floor of an activation block's amax.
inline constexpr float kFp8ActivationFloor = 1e-4f;

/// fp8_block_scales' weight layout: E4M3, fp32 scale per 128 x 128.
inline constexpr WeightLayout kFp8BlockLayout{.element = Element::kE4m3,
                                              .scale = ScaleType::kF32,
                                              .block_rows = kFp8Block,
                                              .block_cols = kFp8Block};
/// E4M3 with one fp32 scale per output row.
inline constexpr WeightLayout kFp8ChannelLayout{
    .element = Element::kE4m3, .scale = ScaleType::kF32, .block_rows = 1, .block_cols = 0};
/// E4M3 with one fp32 scale per matrix.
inline constexpr WeightLayout kFp8TensorLayout{
    .element = Element::kE4m3, .scale = ScaleType::kF32, .block_rows = 0, .block_cols = 0};

/// 2^ceil(log2(amax / 448)) as a float, never below 2^-126 (UE8M0 checkpoints); NaN stays NaN.
SWITCHYARD_HD inline float fp8_scale_ue8m0(float amax) {
  std::uint8_t code = encode_e8m0_ceil_ratio(amax, 0x43e00000u);  // 448
  return decode_e8m0(code == 0 ? std::uint8_t(1) : code);
}

/// Scale of a weight block, channel or tensor: amax / 448, or that rounded up to a power of two.
///
/// Never below 2^-126: a zero block thus decodes to zeros, and no code is a quotient by zero or by
/// a subnormal. A NaN or infinite amax gives a NaN or (without power_of_two) infinite scale.
SWITCHYARD_HD inline float fp8_weight_scale(float amax, bool power_of_two) {
  float scale = amax / kE4m3Max;
  scale = scale < 0x1p-126f ? 0x1p-126f : scale;
  return power_of_two ? fp8_scale_ue8m0(amax) : scale;
}

/// Scale of an activation block or token: max(amax, 1e-4) / 448, or that rounded up to a power of
/// two; NaN stays NaN.
SWITCHYARD_HD inline float fp8_activation_scale(float amax, bool power_of_two) {
  float floored = amax < kFp8ActivationFloor ? kFp8ActivationFloor : amax;
  return power_of_two ? fp8_scale_ue8m0(floored) : floored / kE4m3Max;
}

/// Quantises a run that shares `scale`: e4m3(x / scale) with IEEE division; signs of zeros are
/// kept.
///
/// Shapes:  x, codes [count].
void quantize_run_fp8(const float* x, std::int64_t count, float scale, std::uint8_t* codes);

/// Quantises one activation row per 1 x 128.
///
/// Shapes:  x, codes [cols]; scales [ceil(cols / 128)].
void quantize_row_fp8_block(const float* x, std::int64_t cols, bool power_of_two,
                            std::uint8_t* codes, float* scales);

}  // namespace switchyard::formats
