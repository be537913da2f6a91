// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/gate.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::leaves {
namespace {

constexpr FormatSpec kSpec{
    .format = "fp8_block_scales",
    .doc =
        "E4M3 weights with one fp32 scale per 128 x 128, E4M3 activations with one fp32 scale per "
        "1 x 128.",
    .weights = {.element = formats::Element::kE4m3,
                .scale = formats::ScaleType::kF32,
                .block_rows = 128,
                .block_cols = 128},
    .activation = formats::ActivationQuant::kFp8Block128,
    .cpu_ffn = &ops::kPanelFfnCpu,
    .cuda_ffn = &ops::kTileFfnCuda,
};

}  // namespace

/// The leaves of format "fp8_block_scales".
const FormatLeaves& fp8_block_scales() {
  static constexpr FormatLeaves kLeaves = make_leaves<kSpec>();
  return kLeaves;
}

}  // namespace switchyard::leaves
