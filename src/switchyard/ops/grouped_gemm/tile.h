// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/matrix.h"

/// Weights as the kernels of sm_90 read them: tiles of 64 x 64 bf16 codes, 8 KiB each, that one
/// bulk copy brings into shared memory ready for the tensor cores.
namespace switchyard::ops {

/// Rows and columns of one tile; its rows take 128 bytes, the span of the hardware's swizzle.
inline constexpr std::int64_t kTileRows = 64, kTileCols = 64;
/// Units: bytes.
inline constexpr std::int64_t kTileRowBytes = 2 * kTileCols, kTileBytes = kTileRows * kTileRowBytes;

/// Geometry of one packed matrix: tiles of a row of tiles are contiguous, K ascending.
///
/// Shapes:  rows and cols are those of the packed matrix; both are padded to whole tiles with 0.
struct TileLayout {
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  SWITCHYARD_HD std::int64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  SWITCHYARD_HD std::int64_t col_tiles() const { return (cols + kTileCols - 1) / kTileCols; }
  std::size_t bytes() const { return std::size_t(row_tiles() * col_tiles() * kTileBytes); }
  /// Offset of element (r, c). The 16-byte groups of a row are permuted by its row number modulo 8,
  /// so that neither copies nor tensor cores meet a bank twice. Units: bytes.
  std::size_t offset(std::int64_t r, std::int64_t c) const;
};

/// Rows that a kernel multiplies, in device memory: per 64 columns all rows, 128 bytes each, in the
/// swizzle of TileLayout, so that any rows from a multiple of 8 on are one contiguous copy.
///
/// Shapes:  [col_tiles][capacity][64] bf16; `capacity` a multiple of 8.
struct RowTiles {
  std::byte* data = nullptr;
  std::int64_t capacity = 0;

  /// First byte of eight columns; `group` counts them. Units: bytes.
  SWITCHYARD_HD std::byte* at(std::int64_t row, std::int64_t group) const {
    return data + (group / 8 * capacity + row) * kTileRowBytes + ((group % 8) ^ (row % 8)) * 16;
  }
  /// Bytes of `cols` columns.
  std::size_t bytes(std::int64_t cols) const {
    return std::size_t((cols + kTileCols - 1) / kTileCols * capacity * kTileRowBytes);
  }
};

/// Rows that hold `rows` sorted rows of `experts` experts when each starts at a multiple of 8.
constexpr std::int64_t sorted_capacity(std::int64_t rows, std::int64_t experts) {
  return (rows + 7 * (rows < experts ? rows : experts) + 7) / 8 * 8;
}

/// Where the rows of FC1's two projections go: 8 rows of gate, then the same 8 of up, so that both
/// inputs of an activation land in one thread.
constexpr std::int64_t paired_row(std::int64_t row, bool up) {
  return row / 8 * 16 + row % 8 + (up ? 8 : 0);
}

/// Copies a bf16 matrix into `packed`, row r to row place(r) of the layout: the identity, or
/// paired_row() of gate or up.
enum class RowPlace : std::uint8_t { kPlain, kGate, kUp };

/// Writes the rows of `m`; padding is left as it is, so zero `packed` first.
///
/// Shapes:  packed [layout.bytes()].
/// Errors:  UsageError unless `m` is bf16; InternalError when it does not fit.
void pack_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                std::span<std::byte> packed);

}  // namespace switchyard::ops
