// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/gate.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::leaves {
namespace {

constexpr FormatSpec kSpec{
    .format = "w4a8_mxfp4_fp8",
    .doc = "E2M1 weights with one E8M0 scale per 32, E4M3 activations with one static scale.",
    .weights = {.element = formats::Element::kE2m1,
                .scale = formats::ScaleType::kE8m0,
                .block_rows = 1,
                .block_cols = 32},
    .activation = formats::ActivationQuant::kFp8Tensor,
    .cpu_ffn = &ops::kPanelFfnCpu,
    .cuda_ffn = &ops::kTileFfnCuda,
};

}  // namespace

/// The leaves of format "w4a8_mxfp4_fp8".
const FormatLeaves& w4a8_mxfp4_fp8() {
  static constexpr FormatLeaves kLeaves = make_leaves<kSpec>();
  return kLeaves;
}

}  // namespace switchyard::leaves
