// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "switchyard/ops/grouped_gemm/tile.h"

namespace switchyard::ops {

/// pack_tiles() of bf16; the matrix is known to fit.
void pack_bf16_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                     std::span<std::byte> packed);

}  // namespace switchyard::ops
