// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/ops/grouped_gemm/pack_tiles_math.h"

namespace switchyard::ops {

/// Some rows of tiles of a packed matrix, and the stored rows that they are made from.
///
/// Shapes:  packed and factors are those of the whole matrix, factors null where the code has none;
///          marks [64 * row_tiles] of scratch. All of it device memory.
struct TilePiece {
  TileSources sources;
  TileLayout layout;
  std::int64_t row_tile = 0;  // the first
  std::int64_t row_tiles = 0;
  std::byte* packed = nullptr;
  float* factors = nullptr;
  std::uint32_t* marks = nullptr;
};

/// Writes every byte of these rows of tiles, padding and scales behind the tiles included, and
/// their factors: those that pack_tiles() and pack_factors() write into zeroed memory.
///
/// Errors:  DeviceError when a launch fails or the build has no CUDA.
void pack_tiles_cuda(const TilePiece& piece, Stream stream);

}  // namespace switchyard::ops
