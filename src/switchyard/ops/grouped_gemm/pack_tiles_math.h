// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "switchyard/base/host_device.h"
#include "switchyard/formats/bits.h"
#include "switchyard/ops/grouped_gemm/tile.h"

/// What stands where in a packed matrix, 16 bytes at a time: each unit from the stored rows alone,
/// so that any number of threads, of the host or of the device, write the same bytes.
namespace switchyard::ops {

/// Rows of a stored matrix as a packer reads them, those from `first` on.
///
/// Units:   block_rows and block_cols in elements, whole extents resolved.
struct StoredRows {
  const std::byte* codes = nullptr;   // of row `first`
  const std::byte* scales = nullptr;  // of the block of rows that holds it
  std::int64_t rows = 0;              // of the whole matrix: what comes behind them is padding
  std::int64_t first = 0;
  std::int64_t row_bytes = 0;
  std::int64_t scale_cols = 0;
  std::int64_t block_rows = 1, block_cols = 1;
  formats::ScaleType scale = formats::ScaleType::kNone;
  float global_scale = 1;

  SWITCHYARD_HD const std::byte* code_row(std::int64_t r) const {
    return codes + (r - first) * row_bytes;
  }
  /// The row's scales, of scale_bytes bytes each.
  SWITCHYARD_HD const std::byte* scale_row(std::int64_t r, std::int64_t scale_bytes) const {
    return scales + (r / block_rows - first / block_rows) * scale_cols * scale_bytes;
  }
  /// The fp32 scale that holds column `c`; the last one beyond the matrix.
  SWITCHYARD_HD float float_scale(std::int64_t r, std::int64_t c) const {
    const std::int64_t at = c / block_cols < scale_cols ? c / block_cols : scale_cols - 1;
    float f;
    memcpy(&f, scale_row(r, 4) + at * 4, sizeof f);
    return f;
  }
  /// Whether fp32 scales stand in or behind the tiles; else each row has one, in its factor.
  SWITCHYARD_HD bool scales_in_tiles() const { return scale_cols > 1; }
};

/// The matrix that a packed one is made of, or the two whose rows are paired; no rows: its places
/// stay 0.
struct TileSources {
  StoredRows gate;  // or the only one
  StoredRows up;
  bool paired = false;
  TileCode code = TileCode::kBf16;
};

/// A row of one of the two.
struct SourceRow {
  const StoredRows& from;
  std::int64_t row;

  SWITCHYARD_HD bool exists() const { return row < from.rows; }
};

/// What stands in packed row `row`: the inverse of paired_row().
SWITCHYARD_HD inline SourceRow source_row(const TileSources& s, std::int64_t row) {
  if (!s.paired) return {s.gate, row};
  return {row % 16 < 8 ? s.gate : s.up, row / 16 * 8 + row % 8};
}

/// 16 bytes of a packed matrix.
struct alignas(16) TileUnit {
  std::uint32_t words[4] = {};
};
/// Units: bytes.
inline constexpr std::int64_t kUnitBytes = 16;
static_assert(sizeof(TileUnit) == kUnitBytes);

/// Units of one tile.
SWITCHYARD_HD constexpr std::int64_t tile_units(TileCode code) {
  return tile_bytes(code) / kUnitBytes;
}

/// Which unit: of the tile in row `row_tile` and column `col_tile` of tiles.
struct UnitPlace {
  std::int64_t row_tile = 0;
  std::int64_t col_tile = 0;
  std::int64_t unit = 0;
};

namespace detail {

/// Columns of one multiplication, and of a row's codes that a quarter of a warp's lanes share.
inline constexpr std::int64_t kStepCols = 16;

/// The first `bytes` of 16 bytes that may lie anywhere; the others are 0.
SWITCHYARD_HD inline TileUnit load_unit(const std::byte* from, std::int64_t bytes) {
  TileUnit u;
  if (bytes >= kUnitBytes && reinterpret_cast<std::uintptr_t>(from) % kUnitBytes == 0) {
    memcpy(&u, __builtin_assume_aligned(from, kUnitBytes), sizeof u);
    return u;
  }
  for (int i = 0; i < int(kUnitBytes); ++i)
    if (i < bytes) u.words[i / 4] |= std::uint32_t(from[i]) << i % 4 * 8;
  return u;
}

/// 0x80 in each byte of four E4M3 codes that is a NaN.
SWITCHYARD_HD constexpr std::uint32_t nan_bytes(std::uint32_t codes) {
  return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

/// The codes with 0 for each NaN, whose row has a factor of NaN.
SWITCHYARD_HD constexpr std::uint32_t finite_codes(std::uint32_t codes) {
  return codes & ~((nan_bytes(codes) >> 7) * 0xffu);
}

/// A 16-byte group of a row as the tensor cores read it; groups are permuted by the row's number.
SWITCHYARD_HD inline TileUnit operand_unit(const TileSources& s, const UnitPlace& at) {
  const std::int64_t row = at.unit / 8;
  const SourceRow from = source_row(s, at.row_tile * kTileRows + row);
  const std::int64_t begin = at.col_tile * kTileRowBytes + (at.unit % 8 ^ row % 8) * kUnitBytes;
  if (!from.exists() || begin >= from.from.row_bytes) return {};
  TileUnit u = load_unit(from.from.code_row(from.row) + begin, from.from.row_bytes - begin);
  if (s.code == TileCode::kE4m3Operand)
    for (std::uint32_t& word : u.words) word = finite_codes(word);
  return u;
}

/// The packed row of a thread's lower register; the other one holds the row 8 further down.
SWITCHYARD_HD inline std::int64_t register_row(const UnitPlace& at) {
  return at.row_tile * kTileRows + at.unit % 128 / 32 * 16 + at.unit % 32 / 4;
}

/// Codes of 8 bits of one thread: two steps, for each the lower and the upper columns.
SWITCHYARD_HD inline TileUnit byte_unit(const TileSources& s, const UnitPlace& at) {
  TileUnit u;
  for (int half = 0; half < 2; ++half) {
    const SourceRow from = source_row(s, register_row(at) + 8 * half);
    if (!from.exists()) continue;
    const std::byte* codes = from.from.code_row(from.row);
    for (int word = 0; word < 4; ++word)
      for (int upper = 0; upper < 2; ++upper) {
        const std::int64_t step = at.unit / 128 * 2 + word / 2;
        const std::int64_t col =
            at.col_tile * kTileCols + step * kStepCols + word % 2 * 8 + at.unit % 4 * 2 + upper;
        if (col < from.from.row_bytes)
          u.words[word] |= std::uint32_t(codes[col]) << (upper * 16 + (half == 0 ? 8 : 0));
      }
  }
  for (std::uint32_t& word : u.words) word = finite_codes(word);
  return u;
}

/// Where the four bits of a lower column's code lie in the word that register `reg` is decoded
/// from; an upper column's lie 16 bits further, round the word's end. Sign and magnitude of the
/// first three come to bits 15 and 8 to 6 by one rotation, of 0, 6 and 28 bits to the left; those
/// of the last one take the bits that are left, and two shifts.
SWITCHYARD_HD constexpr std::uint32_t place_code(std::uint32_t code, int reg) {
  const std::uint32_t sign = code >> 3 & 1, magnitude = code & 7;
  if (reg == 0) return sign << 15 | magnitude << 6;
  if (reg == 1) return sign << 9 | magnitude;
  if (reg == 2) return sign << 19 | magnitude << 10;
  return sign << 13 | magnitude >> 2 << 14 | (magnitude & 3) << 4;
}

/// Two codes of 4 bits, the lower column's in the low ones.
SWITCHYARD_HD constexpr std::uint32_t place_pair(std::uint32_t pair, int reg) {
  const std::uint32_t upper = place_code(pair >> 4 & 0xf, reg);
  return place_code(pair & 0xf, reg) | (upper << 16 | upper >> 16);
}

/// Codes of 4 bits of one thread: four steps, for each the lower and the upper columns. Under a
/// scale of 0 they are 0: decoding knows no such scale, and MXFP4 has none.
SWITCHYARD_HD inline TileUnit nibble_unit(const TileSources& s, const UnitPlace& at) {
  TileUnit u;
  for (int half = 0; half < 2; ++half) {
    const SourceRow from = source_row(s, register_row(at) + 8 * half);
    if (!from.exists()) continue;
    const StoredRows& m = from.from;
    const std::byte* codes = m.code_row(from.row);
    const std::byte* scales = m.scale_row(from.row, 1);
    for (int step = 0; step < 4; ++step) {
      const std::int64_t col = at.col_tile * kTileCols + step * kStepCols;
      const bool zero = m.scale == formats::ScaleType::kE4m3 && col < m.row_bytes * 2 &&
                        scales[col / m.block_cols] == std::byte(0);
      for (int upper = 0; upper < 2 && !zero; ++upper) {
        const std::int64_t byte = col / 2 + upper * 4 + at.unit % 4;
        if (byte < m.row_bytes)
          u.words[step] |= place_pair(std::uint32_t(codes[byte]), upper * 2 + half);
      }
    }
  }
  return u;
}

/// Scale codes above this one would leave bf16's range as factors; their rows shift (Mxfp4Rows).
inline constexpr int kMostExponent = 128;

/// By how many powers of two the exponents of an MXFP4 row are lowered, from the largest of them.
SWITCHYARD_HD constexpr int exponent_shift(std::uint32_t largest) {
  return largest > std::uint32_t(kMostExponent) ? int(largest) - kMostExponent : 0;
}

/// The exponent field of the bf16 that decoding multiplies by: the code 2^126 times 2 up, because a
/// code's bits in a bf16 are 2^-126 of its value.
SWITCHYARD_HD constexpr std::uint32_t factor_field(std::uint32_t code, int shift) {
  const int field = int(code) - shift + 126;
  return std::uint32_t(field < 0 ? 0 : field > 254 ? 254 : field);
}

/// An E4M3 scale as decoding reads it: five bits of exponent from 2^-9 on, which is 1, and three of
/// mantissa. Subnormals are normal here, so the bits, shifted and added to a constant, are a bf16.
/// 0 stays 0, which decodes to something else: its block's codes are packed as 0.
SWITCHYARD_HD constexpr std::uint32_t widened_scale(std::uint32_t code) {
  const std::uint32_t exponent = code >> 3, mantissa = code & 7;  // loading refused a set sign bit
  if (exponent > 0) return (exponent + 3) << 3 | mantissa;
  if (mantissa == 0) return 0;
  const std::uint32_t top = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
  return (top + 1) << 3 | (mantissa << (3 - top) & 7);
}

/// Sixteen scales of one byte: per row and 16 columns four bytes of the row's tile; per 32 two,
/// beside those of row + 8. `marks` [64] are the row_mark()s of the tile's rows.
SWITCHYARD_HD inline TileUnit scale_unit(const TileSources& s, const UnitPlace& at,
                                         const std::uint32_t* marks) {
  const bool narrow = s.code == TileCode::kNvfp4;
  const int per_tile = narrow ? 4 : 2;
  TileUnit u;
  for (int i = 0; i < int(kUnitBytes); ++i) {
    const int byte = int(at.unit - 128) * int(kUnitBytes) + i;
    const int pair_row = byte / (2 * per_tile);  // counts the rows of equal half
    const int half = narrow ? byte % 8 / 4 : byte % 2;
    const int in_tile = narrow ? byte % 4 : byte % 4 / 2;
    const int row = pair_row / 8 * 16 + pair_row % 8 + half * 8;
    const SourceRow from = source_row(s, at.row_tile * kTileRows + row);
    const std::int64_t block = at.col_tile * per_tile + in_tile;
    if (!from.exists() || block >= from.from.scale_cols) continue;
    const auto code = std::uint32_t(from.from.scale_row(from.row, 1)[block]);
    const std::uint32_t scale = s.code == TileCode::kMxfp4
                                    ? factor_field(code, exponent_shift(marks[row]))
                                    : widened_scale(code);
    u.words[i / 4] |= scale << i % 4 * 8;
  }
  return u;
}

/// The fp32 scale of the tile's rows of gate (0) or of up (1), or of those that stand there.
SWITCHYARD_HD inline float tile_scale(const TileSources& s, const UnitPlace& at, int which) {
  const std::int64_t row = at.row_tile * kTileRows + (s.paired ? 8 * which : 0);
  const SourceRow from = source_row(s, row);
  return from.exists() ? from.from.float_scale(from.row, at.col_tile * kTileCols) : 0.0f;
}

}  // namespace detail

/// Unit `at` of a packed matrix. `marks` are the row_mark()s of the 64 rows of its row of tiles;
/// only kMxfp4 reads them.
SWITCHYARD_HD inline TileUnit tile_unit(const TileSources& s, const UnitPlace& at,
                                        const std::uint32_t* marks) {
  switch (s.code) {
    case TileCode::kBf16:
    case TileCode::kE4m3Operand:
      return detail::operand_unit(s, at);
    case TileCode::kE4m3:
      return detail::byte_unit(s, at);
    case TileCode::kE4m3Block:
      if (at.unit < 256) return detail::byte_unit(s, at);
      return {{formats::float_bits(detail::tile_scale(s, at, 0)),
               formats::float_bits(detail::tile_scale(s, at, 1)), 0, 0}};
    case TileCode::kMxfp4:
    case TileCode::kNvfp4:
    case TileCode::kNvfp4Wide:
      return at.unit < 128 ? detail::nibble_unit(s, at) : detail::scale_unit(s, at, marks);
  }
  return {};
}

/// Of kE4m3Operand, what stands behind all tiles for tile `at`: the scale of its rows r with
/// r % 16 < 8 (`which` 0) or of the others; 1 where each row has its own, 0 for no such row.
SWITCHYARD_HD inline float operand_scale(const TileSources& s, const UnitPlace& at, int which) {
  const SourceRow from = source_row(s, at.row_tile * kTileRows + 8 * which);
  if (!from.exists()) return 0;
  if (!from.from.scales_in_tiles()) return 1;
  return from.from.float_scale(from.row, at.col_tile * tile_cols(s.code));
}

/// The part of a row's mark that items first, first + step, ... give; the mark is the largest of
/// all. It says what the row's units and factor need to know of the whole row: the largest exponent
/// of MXFP4, or whether one of its E4M3 codes is a NaN.
///
/// Units:   items are scales of MXFP4, groups of 16 codes of E4M3.
SWITCHYARD_HD inline std::uint32_t row_mark(const SourceRow& r, TileCode code, std::int64_t first,
                                            std::int64_t step) {
  const StoredRows& m = r.from;
  std::uint32_t mark = 0;
  if (!r.exists() || code == TileCode::kBf16) return 0;
  if (code == TileCode::kMxfp4) {
    for (std::int64_t b = first; b < m.scale_cols; b += step) {
      const auto exponent = std::uint32_t(m.scale_row(r.row, 1)[b]);
      mark = exponent > mark ? exponent : mark;
    }
  } else if (code == TileCode::kE4m3 || code == TileCode::kE4m3Block ||
             code == TileCode::kE4m3Operand) {
    for (std::int64_t c = first * kUnitBytes; c < m.row_bytes; c += step * kUnitBytes) {
      const TileUnit u = detail::load_unit(m.code_row(r.row) + c, m.row_bytes - c);
      for (std::uint32_t word : u.words) mark |= detail::nan_bytes(word) != 0 ? 1 : 0;
    }
  }
  return mark;
}

/// What the sums of a packed row are multiplied by: its channel's scale, the matrix's global scale
/// and the power of two that decoding leaves out. NaN for a row with a NaN in it, 0 for no row.
SWITCHYARD_HD inline float row_factor(const SourceRow& r, TileCode code, std::uint32_t mark) {
  if (!r.exists()) return 0;
  const StoredRows& m = r.from;
  switch (code) {
    case TileCode::kMxfp4:
      return std::ldexp(m.global_scale, detail::exponent_shift(mark));
    case TileCode::kNvfp4:
    case TileCode::kNvfp4Wide:
      return std::ldexp(m.global_scale, 8);  // what the decoder leaves out
    default:
      break;
  }
  if (mark != 0) return formats::bits_float(formats::kNanBits);
  if (m.scales_in_tiles()) return m.global_scale;
  return m.scale_cols == 0 ? 0.0f : m.float_scale(r.row, 0) * m.global_scale;
}

}  // namespace switchyard::ops
