// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/pack_pieces.h"

#include <algorithm>
#include <cstring>

namespace switchyard::ops {
namespace {

std::size_t rounded(std::int64_t bytes) {
  return std::size_t((bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes);
}

std::int64_t rows_per_tile(const TileSources& s) { return s.paired ? kTileRows / 2 : kTileRows; }

std::int64_t scale_row_bytes(const StoredRows& m) { return m.scale_cols * bytes_of(m.scale); }

std::size_t rows_bytes(const StoredRows& m, std::int64_t rows) {
  if (m.rows == 0) return 0;
  const std::int64_t blocks = rows / m.block_rows + 2;  // the first and the last may be cut
  return rounded(rows * m.row_bytes) + rounded(std::min(blocks, rows) * scale_row_bytes(m));
}

/// Where the next part of a piece goes.
struct Cursor {
  std::byte* host;
  const std::byte* read_at;
  std::size_t used = 0;

  const std::byte* put(const std::byte* from, std::int64_t bytes) {
    if (bytes > 0) std::memcpy(host + used, from, std::size_t(bytes));
    const std::byte* at = read_at + used;
    used += rounded(bytes);
    return at;
  }
};

StoredRows stage_rows(const StoredRows& m, std::int64_t first, std::int64_t count, Cursor& to) {
  const std::int64_t begin = std::min(first, m.rows), end = std::min(first + count, m.rows);
  StoredRows out = m;
  out.first = begin;
  if (begin == end) return out;
  const std::int64_t blocks = (end - 1) / m.block_rows - begin / m.block_rows + 1;
  out.codes = to.put(m.code_row(begin), (end - begin) * m.row_bytes);
  out.scales = to.put(m.scale_row(begin, bytes_of(m.scale)), blocks * scale_row_bytes(m));
  return out;
}

}  // namespace

std::size_t piece_bytes(const TileSources& s, std::int64_t row_tiles) {
  const std::int64_t rows = row_tiles * rows_per_tile(s);
  return rows_bytes(s.gate, rows) + rows_bytes(s.up, rows);
}

std::int64_t piece_row_tiles(const TileSources& s, std::size_t bytes) {
  const std::size_t one = piece_bytes(s, 1);
  std::int64_t tiles = one == 0 ? 1 : std::max<std::int64_t>(1, std::int64_t(bytes / one));
  while (one > 0 && piece_bytes(s, tiles + 1) <= bytes) ++tiles;  // cut blocks count once
  return tiles;
}

StagedPiece stage_piece(const TileSources& s, TileRange range, std::byte* host,
                        const std::byte* read_at) {
  const std::int64_t per_tile = rows_per_tile(s);
  const std::int64_t first = range.first * per_tile, count = range.count * per_tile;
  Cursor to{host, read_at};
  StagedPiece piece{s};
  piece.sources.gate = stage_rows(s.gate, first, count, to);
  piece.sources.up = stage_rows(s.up, first, count, to);
  piece.bytes = to.used;
  return piece;
}

}  // namespace switchyard::ops
