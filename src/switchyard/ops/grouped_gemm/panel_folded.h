// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/panel.h"

namespace switchyard::ops {

/// The AVX-512 panel GEMM of E2M1 codes with E8M0 scales in front of bf16 pairs: a block's scale
/// goes into the exponents of the decoded weights, exactly, as a difference to the row's largest,
/// so that one sum runs through all of K and nothing is left to do for each block and row. Panels
/// that hold a row whose scales are more than 2^32 apart are multiplied by
/// panel_gemm_blocks_avx512(): which they are follows from the weights alone. The args have no
/// block_scales.
void panel_gemm_folded_avx512(const PanelGemmArgs& args);
/// The same matrices, each block summed apart and then scaled.
void panel_gemm_blocks_avx512(const PanelGemmArgs& args);

}  // namespace switchyard::ops
