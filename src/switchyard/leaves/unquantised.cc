// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/gate.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"

namespace switchyard::leaves {
namespace {

constexpr FormatSpec kSpec{
    .format = "none",
    .doc = "bf16 weights, activations in the hidden dtype.",
    .weights = {.element = formats::Element::kBf16},
    .activation = formats::ActivationQuant::kNone,
    .cpu_ffn = &ops::kPanelFfnCpu,
    .cuda_ffn = &ops::kTileFfnCuda,
};

}  // namespace

/// The leaves of format "none".
const FormatLeaves& unquantised() {
  static constexpr FormatLeaves kLeaves = make_leaves<kSpec>();
  return kLeaves;
}

}  // namespace switchyard::leaves
