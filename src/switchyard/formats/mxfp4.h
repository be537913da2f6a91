// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/matrix.h"

namespace switchyard::formats {

/// Elements that share one E8M0 scale in MXFP4 and MXFP8.
inline constexpr std::int64_t kMxBlock = 32;

/// MXFP4's weight layout: E2M1, E8M0 per 1 x 32.
inline constexpr WeightLayout kMxfp4Layout{
    .element = Element::kE2m1, .scale = ScaleType::kE8m0, .block_rows = 1, .block_cols = kMxBlock};

/// Shared exponent of a block: code of 2^ceil(log2(amax / 6)); NaN gives 255, zero gives 0.
///
/// Source: the rounding-up recipe; the OCP floor would saturate the largest elements.
SWITCHYARD_HD inline std::uint8_t mxfp4_scale(float amax) {
  return encode_e8m0_ceil_ratio(amax, 0x40c00000u);  // 6
}

/// Quantises one row; elements are e2m1(x * 2^-e). A zero block has code 0 and only +0 elements, a
/// block with a NaN has scale 255, infinity saturates.
///
/// Shapes:  x [cols], cols even; codes [cols / 2], even column in the low nibble;
///          scales [ceil(cols / 32)].
/// Errors:  never throws; an odd cols is rounded up, so check it before.
void quantize_row_mxfp4(const float* x, std::int64_t cols, std::uint8_t* codes,
                        std::uint8_t* scales);

}  // namespace switchyard::formats
