// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/layer/layer.h"

namespace switchyard::layer {

/// What a layer's static quantisers would see of some tokens.
///
/// Shapes:  fc2 [packed experts], -1 where an expert saw no token.
struct CalibrationAmax {
  float fc1 = 0;
  std::vector<float> fc2;

  /// The larger value of each: of more tokens, or of another rank that holds other columns of the
  /// same experts. Errors: InternalError for another number of experts.
  void merge(const CalibrationAmax& other);
  /// The largest of fc2.
  float largest() const;
};

/// Runs tokens in f32 mode, some at a time. A part of a layer sees the columns and experts that it
/// holds; FC1's input is the same on every rank that is given the same tokens.
///
/// Shapes:  hidden [tokens, H] fp32 dense; token_ids [tokens] or null; packed [E] the packed number
///          of each expert or -1, where slots are not the experts in their order.
/// Errors:  UsageError when no tokens are given, and those of routing.
CalibrationAmax calibration_amax(const Layer& layer, std::int64_t tokens, const float* hidden,
                                 const std::int64_t* token_ids,
                                 std::span<const std::int32_t> packed = {});

/// Static scales with 5 % head room; an expert that saw no token takes `largest`, the largest of
/// all ranks' experts.
StaticScales calibrated_scales(formats::ActivationQuant quant, const CalibrationAmax& amax,
                               float largest);

}  // namespace switchyard::layer
