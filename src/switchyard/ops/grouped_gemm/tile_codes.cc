// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/tile_codes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::ops {
namespace {

using formats::Element;
using formats::Matrix;
using formats::ScaleType;

/// Columns of one multiplication, and of a row's codes that a quarter of a warp's lanes share.
constexpr std::int64_t kStepCols = 16, kSteps = kTileCols / kStepCols;

/// Scale codes above this one would leave bf16's range as factors; their rows shift (Mxfp4Rows).
constexpr int kMostExponent = 128;

/// One row of tiles as a packer sees it: where a matrix row's registers lie.
struct RowSlot {
  std::byte* tile;   // of the row's first column tile
  std::int64_t row;  // within the tile

  std::int64_t warp() const { return row / 16; }
  std::int64_t half() const { return row % 16 / 8; }  // register 0 and 2, or 1 and 3
  /// The first of the four threads that hold the row.
  std::int64_t thread() const { return warp() * 32 + row % 8 * 4; }
  /// Counts the rows of equal half.
  std::int64_t pair_row() const { return warp() * 8 + row % 8; }
};

RowSlot slot_of(const TileLayout& l, std::int64_t r, RowPlace place, std::span<std::byte> packed) {
  const std::int64_t row = placed_row(r, place);
  return {packed.data() + row / kTileRows * l.col_tiles() * tile_bytes(l.code), row % kTileRows};
}

/// Adds `bits` to the word of a thread.
void add_word(std::byte* at, std::uint32_t bits) {
  std::uint32_t word;
  std::memcpy(&word, at, 4);
  word |= bits;
  std::memcpy(at, &word, 4);
}

/// Where the four bits of a lower column's code lie in the word that register `reg` is decoded
/// from; an upper column's lie 16 bits further, round the word's end. Sign and magnitude of the
/// first three come to bits 15 and 8 to 6 by one rotation, of 0, 6 and 28 bits to the left; those
/// of the last one take the bits that are left, and two shifts.
constexpr std::uint32_t place_code(std::uint32_t code, int reg) {
  const std::uint32_t sign = code >> 3 & 1, magnitude = code & 7;
  if (reg == 0) return sign << 15 | magnitude << 6;
  if (reg == 1) return sign << 9 | magnitude;
  if (reg == 2) return sign << 19 | magnitude << 10;
  return sign << 13 | magnitude >> 2 << 14 | (magnitude & 3) << 4;
}

/// Sixteen codes of 4 bits: two of each thread for its lower, two for its upper columns.
void pack_step_4(const std::uint8_t (&codes)[8], const RowSlot& s, std::byte* tile,
                 std::int64_t step) {
  for (std::int64_t upper = 0; upper < 2; ++upper)
    for (std::int64_t lane = 0; lane < 4; ++lane) {
      const std::uint32_t pair = codes[upper * 4 + lane];
      const int reg = int(upper * 2 + s.half());
      add_word(tile + (s.thread() + lane) * 16 + step * 4,
               place_code(pair & 0xf, reg) | std::rotl(place_code(pair >> 4, reg), 16));
    }
}

/// Sixteen codes of 8 bits, from column `col` on. A NaN becomes 0: its row's factor is NaN.
void pack_step_8(const std::uint8_t (&codes)[16], const RowSlot& s, std::byte* tile,
                 std::int64_t col) {
  const std::int64_t step = col % kTileCols / kStepCols;
  const auto finite = [](std::uint8_t c) { return (c & 0x7f) == 0x7f ? 0u : std::uint32_t(c); };
  for (std::int64_t upper = 0; upper < 2; ++upper)
    for (std::int64_t lane = 0; lane < 4; ++lane) {
      const std::uint8_t* pair = codes + upper * 8 + lane * 2;
      const int down = s.half() == 0 ? 8 : 0;
      add_word(tile + step / 2 * 2048 + (s.thread() + lane) * 16 + step % 2 * 8 + upper * 4,
               finite(pair[0]) << down | finite(pair[1]) << (down + 16));
    }
}

template <std::size_t bytes, class Pack>
void pack_row_codes(const Matrix& m, std::int64_t r, const RowSlot& slot, TileCode code,
                    Pack pack) {
  const std::int64_t row_bytes = m.layout.row_bytes(m.cols);
  const std::byte* from = m.codes.data() + r * row_bytes;
  for (std::int64_t at = 0, step = 0; at < row_bytes; at += std::int64_t(bytes), ++step) {
    std::uint8_t codes[bytes] = {};
    std::memcpy(codes, from + at, std::min(bytes, std::size_t(row_bytes - at)));
    pack(codes, slot, slot.tile + step / kSteps * tile_bytes(code), step * kStepCols);
  }
}

std::span<const std::byte> scale_row(const Matrix& m, std::int64_t r) {
  const std::int64_t block = m.layout.block_rows > 0 ? m.layout.block_rows : m.rows;
  const std::size_t bytes = std::size_t(m.layout.scale_cols(m.cols) * bytes_of(m.layout.scale));
  return m.scales.subspan(std::size_t(r / block) * bytes, bytes);
}

float float_at(std::span<const std::byte> scales, std::int64_t i) {
  float f;
  std::memcpy(&f, scales.data() + i * 4, 4);
  return f;
}

/// By how many powers of two the exponents of an MXFP4 row are lowered.
int exponent_shift(const Matrix& m, std::int64_t r) {
  int most = 0;
  for (std::byte b : scale_row(m, r)) most = std::max(most, int(b));
  return std::max(0, most - kMostExponent);
}

/// The exponent field of the bf16 that decoding multiplies by: the code 2^126 times 2 up, because a
/// code's bits in a bf16 are 2^-126 of its value.
std::byte factor_field(std::byte code, int shift) {
  return std::byte(std::clamp(int(code) - shift + 126, 0, 254));
}

/// An E4M3 scale as decoding reads it: five bits of exponent from 2^-9 on, which is 1, and three of
/// mantissa. Subnormals are normal here, so the bits, shifted and added to a constant, are a bf16.
/// 0 stays 0, which decodes to something else: its block's codes are packed as 0.
std::byte widened_scale(std::byte scale) {
  const int code = int(scale);
  const int exponent = code >> 3, mantissa = code & 7;  // loading refused a set sign bit
  if (exponent > 0) return std::byte((exponent + 3) << 3 | mantissa);
  if (mantissa == 0) return std::byte(0);
  const int top = std::bit_width(unsigned(mantissa)) - 1;
  return std::byte((top + 1) << 3 | (mantissa << (3 - top) & 7));
}

/// Whether the block of a row that holds `col` has scale 0; MXFP4 has no such scale.
bool has_zero_scale(const Matrix& m, std::int64_t r, std::int64_t col) {
  return m.layout.scale == ScaleType::kE4m3 &&
         scale_row(m, r)[std::size_t(col / m.layout.block_cols)] == std::byte(0);
}

/// A row of codes of 4 bits.
void pack_row_4(const Matrix& m, std::int64_t r, const RowSlot& slot, TileCode code) {
  pack_row_codes<8>(
      m, r, slot, code,
      [&](std::uint8_t(&codes)[8], const RowSlot& s, std::byte* tile, std::int64_t col) {
        if (has_zero_scale(m, r, col)) std::fill_n(codes, 8, std::uint8_t(0));
        pack_step_4(codes, s, tile, col % kTileCols / kStepCols);
      });
}

/// Per row and 16 columns: four bytes of the row's tile; per 32: two, beside those of row + 8.
void pack_scale_bytes(const Matrix& m, std::int64_t r, const RowSlot& s, const TileLayout& l) {
  const std::span<const std::byte> from = scale_row(m, r);
  const bool narrow = l.code == TileCode::kNvfp4;
  const std::int64_t per_tile = narrow ? 4 : 2;
  const int shift = l.code == TileCode::kMxfp4 ? exponent_shift(m, r) : 0;
  for (std::int64_t b = 0; b < std::int64_t(from.size()); ++b) {
    std::byte* scales = s.tile + b / per_tile * tile_bytes(l.code) + 2048;
    const std::int64_t in_tile = b % per_tile;
    const std::int64_t at = narrow ? s.pair_row() * 8 + s.half() * 4 + in_tile
                                   : s.pair_row() * 4 + in_tile * 2 + s.half();
    scales[at] = l.code == TileCode::kMxfp4 ? factor_field(from[std::size_t(b)], shift)
                                            : widened_scale(from[std::size_t(b)]);
  }
}

/// The scales of gate, of up or of both, behind every tile of the row.
void pack_block_scales(const Matrix& m, std::int64_t r, const RowSlot& s, const TileLayout& l,
                       RowPlace place) {
  const std::span<const std::byte> from = scale_row(m, r);
  const std::int64_t count = m.layout.scale_cols(m.cols);
  const std::int64_t block = m.layout.block_cols > 0 ? m.layout.block_cols : m.cols;
  for (std::int64_t t = 0; t < l.col_tiles(); ++t) {
    const float scale = float_at(from, std::min(t * kTileCols / block, count - 1));
    std::byte* at = s.tile + t * tile_bytes(l.code) + 4096;
    if (place != RowPlace::kUp) std::memcpy(at, &scale, 4);
    if (place != RowPlace::kGate) std::memcpy(at + 4, &scale, 4);
  }
}

/// Whether fp32 scales stand in the tiles; else each row has one, and it is in the row's factor.
bool scales_in_tiles(const Matrix& m) { return m.layout.scale_cols(m.cols) > 1; }

bool is_nan(std::byte code) { return (code & std::byte(0x7f)) == std::byte(0x7f); }

bool has_nan(const Matrix& m, std::int64_t r) {
  if (m.layout.element != Element::kE4m3) return false;
  const std::byte* from = m.codes.data() + r * m.cols;
  return std::any_of(from, from + m.cols, is_nan);
}

/// Behind all tiles the scales of each; 1 where a row has only one.
void pack_operand_scales(const Matrix& m, const TileLayout& l, RowPlace place,
                         std::span<std::byte> packed) {
  const std::int64_t count = m.layout.scale_cols(m.cols);
  const std::int64_t block = m.layout.block_cols > 0 ? m.layout.block_cols : m.cols;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const std::int64_t row = placed_row(r, place);
    if (row % 8 != 0) continue;
    for (std::int64_t t = 0; t < l.col_tiles(); ++t) {
      const std::int64_t column = std::min(t * tile_cols(l.code) / block, count - 1);
      const float scale = scales_in_tiles(m) ? float_at(scale_row(m, r), column) : 1;
      const std::int64_t at = (row / kTileRows * l.col_tiles() + t) * 2 + row % 16 / 8;
      std::memcpy(packed.data() + l.scales_at() + at * 4, &scale, 4);
    }
  }
}

/// E4M3 as the tensor cores read it. A NaN becomes 0: its row's factor is NaN.
void pack_e4m3_operand(const Matrix& m, const TileLayout& l, RowPlace place,
                       std::span<std::byte> packed) {
  pack_operand_tiles(m, l, place, packed);
  for (std::int64_t r = 0; r < m.rows; ++r)
    for (std::int64_t c = 0; c < m.cols; ++c)
      if (is_nan(m.codes[std::size_t(r * m.cols + c)]))
        packed[l.offset(placed_row(r, place), c)] = std::byte(0);
  pack_operand_scales(m, l, place, packed);
}

float row_factor(const Matrix& m, TileCode code, std::int64_t r) {
  if (has_nan(m, r)) return std::numeric_limits<float>::quiet_NaN();
  switch (code) {
    case TileCode::kMxfp4:
      return std::ldexp(m.global_scale, exponent_shift(m, r));
    case TileCode::kNvfp4:
    case TileCode::kNvfp4Wide:
      return std::ldexp(m.global_scale, 8);  // what the decoder leaves out
    default:
      return scales_in_tiles(m) ? m.global_scale : float_at(scale_row(m, r), 0) * m.global_scale;
  }
}

/// Fp32 scales that differ along a row: one per tile has to do, for 64 rows at a time.
bool suits_block_tiles(const formats::WeightLayout& l) {
  return (l.block_rows == 0 || l.block_rows % kTileRows == 0) && l.block_cols % 128 == 0;
}

TileCode four_bit_code(const formats::WeightLayout& l) {
  if (l.scale == ScaleType::kE8m0) return TileCode::kMxfp4;
  return l.block_cols == 16 ? TileCode::kNvfp4 : TileCode::kNvfp4Wide;
}

bool suits_four_bits(const formats::WeightLayout& l) {
  const bool wide = l.block_cols == 32, narrow = l.block_cols == 16;
  return l.block_rows == 1 && ((l.scale == ScaleType::kE8m0 && wide) ||
                               (l.scale == ScaleType::kE4m3 && (wide || narrow)));
}

Element element_of(TileCode code) {
  switch (code) {
    case TileCode::kBf16:
      return Element::kBf16;
    case TileCode::kE4m3:
    case TileCode::kE4m3Block:
    case TileCode::kE4m3Operand:
      return Element::kE4m3;
    default:
      return Element::kE2m1;
  }
}

}  // namespace

TileCode tile_code(const formats::WeightLayout& l, std::int64_t cols,
                   formats::ActivationQuant inputs) {
  const bool whole_rows = l.block_cols == 0 || l.block_cols >= cols;
  const bool block_inputs = has_block_scales(inputs);
  if (l.element == Element::kBf16 && l.scale == ScaleType::kNone && !block_inputs)
    return TileCode::kBf16;
  if (l.element == Element::kE4m3 && l.scale == ScaleType::kF32 &&
      (whole_rows || suits_block_tiles(l))) {
    if (has_e4m3_codes(inputs)) return TileCode::kE4m3Operand;
    return whole_rows ? TileCode::kE4m3 : TileCode::kE4m3Block;
  }
  if (l.element == Element::kE2m1 && suits_four_bits(l) && !block_inputs) return four_bit_code(l);
  throw UsageError(cat(
      "cuda: weights of ", to_string(l.element), " with ", to_string(l.scale), " scales per ",
      l.block_rows, "x", l.block_cols, block_inputs ? " and activations with scales per 128" : "",
      " have no tiles in this version; convert them to another format, or use the cpu leaf"));
}

void pack_tiles(const Matrix& m, const TileLayout& l, RowPlace place, std::span<std::byte> packed) {
  const Element element = element_of(l.code);
  require(m.layout.element == element, "cuda: weights are stored as ", to_string(m.layout.element),
          ", this layer was laid out for ", to_string(element),
          "; convert them, or use the cpu leaf");
  ensure(packed.size() == l.bytes() && m.cols == l.cols &&
             (m.rows == 0 || placed_row(m.rows - 1, place) < l.row_tiles() * kTileRows),
         "pack_tiles: a matrix of [", m.rows, ", ", m.cols, "] for a layout of [", l.rows, ", ",
         l.cols, "] in ", packed.size(), " bytes");
  if (l.code == TileCode::kBf16) return pack_operand_tiles(m, l, place, packed);
  if (l.code == TileCode::kE4m3Operand) return pack_e4m3_operand(m, l, place, packed);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    const RowSlot slot = slot_of(l, r, place, packed);
    if (element == Element::kE2m1) {
      pack_row_4(m, r, slot, l.code);
      pack_scale_bytes(m, r, slot, l);
    } else {
      pack_row_codes<16>(m, r, slot, l.code, pack_step_8);
    }
    if (l.code == TileCode::kE4m3Block && slot.row % 8 == 0)
      pack_block_scales(m, r, slot, l, place);
  }
}

void pack_factors(const Matrix& m, const TileLayout& l, RowPlace place, std::span<float> factors) {
  ensure(factors.size_bytes() == l.factor_bytes(), "pack_factors: ", factors.size(),
         " factors for ", l.row_tiles(), " tiles of rows");
  for (std::int64_t r = 0; r < m.rows; ++r)
    factors[std::size_t(placed_row(r, place))] = row_factor(m, l.code, r);
}

}  // namespace switchyard::ops
