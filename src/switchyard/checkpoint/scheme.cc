// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/scheme.h"

namespace switchyard::checkpoint::schemes {

using formats::ActivationQuant;
using formats::Element;
using formats::ScaleType;

Scheme fp8_block(bool ue8m0) {
  return {.kind = SchemeKind::kFp8Block,
          .format = "fp8_block_scales",
          .layout = {Element::kE4m3, ScaleType::kF32, 128, 128, false, ue8m0},
          .activation = ue8m0 ? ActivationQuant::kFp8Block128Ue8m0 : ActivationQuant::kFp8Block128,
          .names = {.scale = "weight_scale_inv|scale"}};
}

Scheme fp8_tensor(ActivationQuant activation) {
  return {.kind = SchemeKind::kFp8Tensor,
          .format = "fp8",
          .layout = {Element::kE4m3, ScaleType::kF32, 0, 0, false, false},
          .activation = activation,
          .bf16_activations = activation == ActivationQuant::kNone,
          .names = {.scale = "weight_scale", .input = "input_scale"}};
}

Scheme fp8_channel(ActivationQuant activation) {
  Scheme out = fp8_tensor(activation);
  out.kind = SchemeKind::kFp8Channel;
  out.layout.block_rows = 1;
  return out;
}

Scheme nvfp4(bool weight_only) {
  return {.kind = SchemeKind::kNvfp4,
          .format = "nvfp4",
          .layout = {Element::kE2m1, ScaleType::kE4m3, 1, 16, true, false},
          .activation = weight_only ? ActivationQuant::kNone : ActivationQuant::kNvfp4,
          .bf16_activations = weight_only,
          .names = {.scale = "weight_scale", .global = "weight_scale_2", .input = "input_scale"}};
}

Scheme mxfp4() {
  return {.kind = SchemeKind::kMxfp4,
          .format = "w4a16_mxfp4",
          .layout = {Element::kE2m1, ScaleType::kE8m0, 1, 32, false, false},
          .names = {.scale = "scale|weight_scale"}};
}

Scheme mxfp4_mxfp8() {
  Scheme out = mxfp4();
  out.format = "w4a8_mxfp4_mxfp8";
  out.activation = ActivationQuant::kMxfp8;
  return out;
}

Scheme mxfp4_blocks() {
  Scheme out = mxfp4();
  out.kind = SchemeKind::kMxfp4Blocks;
  out.names = {};
  return out;
}

}  // namespace switchyard::checkpoint::schemes
