// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/matrix.h"

/// Weights as the kernels of sm_90 read them: tiles of 64 x 64 codes at their stored width, with
/// their scales, that one bulk copy brings into shared memory.
namespace switchyard::ops {

/// Rows and columns of one tile; its rows take 128 bytes, the span of the hardware's swizzle.
inline constexpr std::int64_t kTileRows = 64, kTileCols = 64;
/// Units: bytes.
inline constexpr std::int64_t kTileRowBytes = 2 * kTileCols, kTileBytes = kTileRows * kTileRowBytes;

/// What a tile holds. bf16 and E4M3 operands lie as the tensor cores read shared memory; the others
/// lie in the order of a warpgroup's operand registers, so that each thread loads and decodes its
/// own part.
enum class TileCode : std::uint8_t {
  kBf16,
  kE4m3Operand,  // 128 columns; behind all tiles two fp32 scales of each, as in kE4m3Block
  kE4m3,         // codes alone
  kE4m3Block,  // and two fp32 scales: of the rows r with r % 16 < 8 (gate), and of the others (up)
  kMxfp4,      // E2M1 with an exponent byte per row and 32 columns
  kNvfp4,      // E2M1 with an E4M3 byte per row and 16 columns
  kNvfp4Wide   // E2M1 with an E4M3 byte per row and 32 columns
};

/// Bytes of one tile, scales included; a multiple of 16.
SWITCHYARD_HD constexpr std::int64_t tile_bytes(TileCode code) {
  switch (code) {
    case TileCode::kE4m3:
      return 4096;
    case TileCode::kE4m3Block:
      return 4096 + 16;
    case TileCode::kMxfp4:
    case TileCode::kNvfp4Wide:
      return 2048 + 128;
    case TileCode::kNvfp4:
      return 2048 + 256;
    case TileCode::kBf16:
    case TileCode::kE4m3Operand:
      break;
  }
  return kTileBytes;
}

/// Columns of one tile.
SWITCHYARD_HD constexpr std::int64_t tile_cols(TileCode code) {
  return code == TileCode::kE4m3Operand ? 2 * kTileCols : kTileCols;
}

/// Whether activations so quantised have one fp32 scale per 128 columns.
SWITCHYARD_HD constexpr bool has_block_scales(formats::ActivationQuant q) {
  using enum formats::ActivationQuant;
  return q == kFp8Block128 || q == kFp8Block128Ue8m0;
}

/// Whether they are E4M3 codes beside fp32 scales of 128 columns or more, which the tensor cores
/// can multiply as they are.
SWITCHYARD_HD constexpr bool has_e4m3_codes(formats::ActivationQuant q) {
  using enum formats::ActivationQuant;
  return has_block_scales(q) || q == kFp8Token || q == kFp8Tensor;
}

/// Whether a tile of this version holds matrices of `layout` with `cols` columns for activations
/// that are quantised by `inputs`.
bool has_tiles(const formats::WeightLayout& layout, std::int64_t cols,
               formats::ActivationQuant inputs);
/// The code in which they are packed.
/// Errors:  UsageError when no tile of this version holds such weights.
TileCode tile_code(const formats::WeightLayout& layout, std::int64_t cols,
                   formats::ActivationQuant inputs);

/// Geometry of one packed matrix: tiles of a row of tiles are contiguous, K ascending.
///
/// Shapes:  rows and cols are those of the packed matrix; both are padded to whole tiles with 0.
struct TileLayout {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  TileCode code = TileCode::kBf16;

  SWITCHYARD_HD std::int64_t row_tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  SWITCHYARD_HD std::int64_t col_tiles() const {
    return (cols + tile_cols(code) - 1) / tile_cols(code);
  }
  /// Scales behind the tiles: of gate's and of up's rows, [row_tiles][col_tiles][2] fp32.
  SWITCHYARD_HD std::int64_t scales_at() const {
    return row_tiles() * col_tiles() * tile_bytes(code);
  }
  /// All of it.
  std::size_t bytes() const {
    const std::int64_t scales = code == TileCode::kE4m3Operand ? row_tiles() * col_tiles() * 8 : 0;
    return std::size_t(scales_at() + (scales + 63) / 64 * 64);  // what follows begins on 64 too
  }
  /// Factors of the packed rows beside the tiles, fp32; 0 where the code has none.
  std::size_t factor_bytes() const {
    return code == TileCode::kBf16 ? 0 : std::size_t(row_tiles() * kTileRows) * sizeof(float);
  }
  /// Offset of element (r, c) of bf16 or of E4M3 operands. The 16-byte groups of a row are permuted
  /// by its row number modulo 8, so that neither copies nor tensor cores meet a bank twice. Units:
  /// bytes.
  std::size_t offset(std::int64_t r, std::int64_t c) const;
};

/// Rows that a kernel multiplies, in device memory: per 64 columns all rows, 128 bytes each, in the
/// swizzle of TileLayout, so that any rows from a multiple of 8 on are one contiguous copy.
///
/// fp16 values take two planes, their nearest bf16 and what that left over: together they are
/// exact. E4M3 codes take one byte, so that 128 columns are a row of 128 bytes.
///
/// Shapes:  [col_tiles][planes][capacity][64] bf16, or [col_tiles][capacity][128] codes; `capacity`
///          a multiple of 8.
struct RowTiles {
  std::byte* data = nullptr;
  std::int64_t capacity = 0;
  std::int64_t planes = 1;
  bool codes = false;  ///< E4M3 instead of bf16.

  /// First byte of 16: eight columns of bf16, 16 of codes; `group` counts them. Units: bytes.
  SWITCHYARD_HD std::byte* at(std::int64_t row, std::int64_t group, std::int64_t plane = 0) const {
    return data + ((group / 8 * planes + plane) * capacity + row) * kTileRowBytes +
           ((group % 8) ^ (row % 8)) * 16;
  }
  /// Of one tile.
  SWITCHYARD_HD std::int64_t tile_cols() const { return codes ? 2 * kTileCols : kTileCols; }
  /// Bytes of `cols` columns.
  std::size_t bytes(std::int64_t cols) const {
    return std::size_t((cols + tile_cols() - 1) / tile_cols() * planes * capacity * kTileRowBytes);
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

/// Where row r of a matrix goes in its packed one: to r, or to paired_row() of gate or up.
enum class RowPlace : std::uint8_t { kPlain, kGate, kUp };

/// The row of the packed matrix.
constexpr std::int64_t placed_row(std::int64_t row, RowPlace place) {
  return place == RowPlace::kPlain ? row : paired_row(row, place == RowPlace::kUp);
}

/// Adds the rows of `m` to what stands in `packed`; zero it first. What stands where:
/// pack_tiles_math.h, for the device too.
///
/// Shapes:  packed [layout.bytes()].
/// Errors:  UsageError unless `m` is stored as `layout` says; InternalError when it does not fit.
void pack_tiles(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                std::span<std::byte> packed);

/// Writes what the sums of each packed row of `m` are multiplied by: row_factor(). NaN for a row
/// with a NaN in it: every sum of that row is one.
///
/// Shapes:  factors [row_tiles * 64].
void pack_factors(const formats::Matrix& m, const TileLayout& layout, RowPlace place,
                  std::span<float> factors);

}  // namespace switchyard::ops
