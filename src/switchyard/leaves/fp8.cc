// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/gate.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::leaves {
namespace {

constexpr FormatSpec kSpec{
    .format = "fp8",
    .doc =
        "E4M3 weights with one fp32 scale per output channel, E4M3 activations with one fp32 scale "
        "per token.",
    .weights = {.element = formats::Element::kE4m3,
                .scale = formats::ScaleType::kF32,
                .block_rows = 1,
                .block_cols = 0},
    .activation = formats::ActivationQuant::kFp8Token,
    .cpu_ffn = &ops::kPanelFfnCpu,
    .cuda_ffn = &ops::kTileFfnCuda,
};

}  // namespace

/// The leaves of format "fp8".
const FormatLeaves& fp8() {
  static constexpr FormatLeaves kLeaves = make_leaves<kSpec>();
  return kLeaves;
}

}  // namespace switchyard::leaves
