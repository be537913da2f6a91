// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_tiles_code_sm90.h"

namespace switchyard::ops::sm90 {

template struct TileGemm<TileCode::kE4m3>;

}  // namespace switchyard::ops::sm90
