// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "switchyard/ops/grouped_gemm/tile.h"

namespace switchyard::ops {

/// pack_tiles() of what tensor cores read as it is, codes alone; the matrix is known to fit.
void pack_operand_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                        std::span<std::byte> packed);

}  // namespace switchyard::ops
