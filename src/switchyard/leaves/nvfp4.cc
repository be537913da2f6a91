// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/gate.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::leaves {
namespace {

constexpr FormatSpec kSpec{
    .format = "nvfp4",
    .doc = "E2M1 weights and activations, one E4M3 scale per 16 and one fp32 scale per tensor.",
    .weights = {.element = formats::Element::kE2m1,
                .scale = formats::ScaleType::kE4m3,
                .block_rows = 1,
                .block_cols = 16,
                .global_scale = true},
    .activation = formats::ActivationQuant::kNvfp4,
    .cpu_ffn = &ops::kPanelFfnCpu,
    .cuda_ffn = &ops::kTileFfnCuda,
};

}  // namespace

/// The leaves of format "nvfp4".
const FormatLeaves& nvfp4() {
  static constexpr FormatLeaves kLeaves = make_leaves<kSpec>();
  return kLeaves;
}

}  // namespace switchyard::leaves
