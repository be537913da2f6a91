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

/// A panel of E2M1 codes with their scales folded in, as tiles of AMX read it: bf16, exactly.
///
/// Shapes:  weights [padded_cols / 2, 16 rows, 2 columns], on a 64-byte boundary; scale [16]: what
///          a row's sums are worth beside. E8M0 scales lie within 2^32 in every row of the panel.
void decode_folded_avx512(const PanelMatrix& w, std::int64_t panel, std::uint16_t* weights,
                          float* scale);

}  // namespace switchyard::ops
