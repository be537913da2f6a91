// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/formats/mxfp4.h"

namespace switchyard::formats {

/// MXFP8's weight layout: E4M3, E8M0 per 1 x 32.
inline constexpr WeightLayout kMxfp8Layout{
    .element = Element::kE4m3, .scale = ScaleType::kE8m0, .block_rows = 1, .block_cols = kMxBlock};

/// Shared exponent of a block: code of 2^ceil(log2(amax / 448)); NaN gives 255, zero gives 0.
SWITCHYARD_HD inline std::uint8_t mxfp8_scale(float amax) {
  return encode_e8m0_ceil_ratio(amax, 0x43e00000u);  // 448
}

/// Quantises one row; elements are e4m3(x * 2^-e). A zero block has code 0 and only +0 elements, a
/// block with a NaN has scale 255 and codes 0x7F, infinity saturates.
///
/// Shapes:  x, codes [cols]; scales [ceil(cols / 32)].
void quantize_row_mxfp8(const float* x, std::int64_t cols, std::uint8_t* codes,
                        std::uint8_t* scales);

}  // namespace switchyard::formats
