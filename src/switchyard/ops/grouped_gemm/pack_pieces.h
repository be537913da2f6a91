// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/ops/grouped_gemm/pack_tiles_math.h"

/// Stored rows cut into pieces, in memory of bounded size, for whoever packs elsewhere.
namespace switchyard::ops {

/// Rows of tiles [first, first + count) of a packed matrix.
struct TileRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Bytes that any `row_tiles` rows of tiles made from `s` need at most; reads no pointer of `s`.
std::size_t piece_bytes(const TileSources& s, std::int64_t row_tiles);

/// Rows of tiles whose stored rows fit into `bytes`, but at least one.
std::int64_t piece_row_tiles(const TileSources& s, std::size_t bytes);

/// A piece of a matrix, or of the two whose rows are paired.
struct StagedPiece {
  TileSources sources;    // as they are to be read
  std::size_t bytes = 0;  // written
};

/// Copies the stored rows that `range` is made from to `host`, each part on a multiple of 16 bytes;
/// they are to be read at `read_at`, where the same bytes will lie.
///
/// Shapes:  host [piece_bytes(s, range.count)].
StagedPiece stage_piece(const TileSources& s, TileRange range, std::byte* host,
                        const std::byte* read_at);

}  // namespace switchyard::ops
