// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/e4m3_operand_sm90.h"
#include "switchyard/ops/grouped_gemm/gemm_tiles_code_sm90.h"

namespace switchyard::ops::sm90 {

template struct TileGemm<TileCode::kE4m3Operand>;

}  // namespace switchyard::ops::sm90
