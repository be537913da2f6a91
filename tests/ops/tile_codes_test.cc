// SPDX-License-Identifier: Apache-2.0
// Packed tiles, read back the way a thread of a warpgroup reads its registers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "switchyard/core/shard.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/formats/slice.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/grouped_gemm/pack_tiles.h"
#include "switchyard/ops/grouped_gemm/tile.h"
#include "tests/cases/moe_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using formats::Element;
using formats::ScaleType;

constexpr formats::WeightLayout kMxfp4{
    .element = Element::kE2m1, .scale = ScaleType::kE8m0, .block_rows = 1, .block_cols = 32};

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// The code of register `reg` for the lower (0) or upper (1) of its columns: where three rotations
/// put sign and magnitude, and what is left for the last register.
std::uint32_t four_bits(std::uint32_t word, int reg, int half) {
  const std::uint32_t w = std::rotr(word, 16 * half);
  const auto bits = [&](std::initializer_list<int> places) {
    std::uint32_t code = 0;
    for (int i : places) code = code << 1 | (w >> i & 1);
    return code;
  };
  if (reg == 0) return bits({15, 8, 7, 6});
  if (reg == 1) return bits({9, 2, 1, 0});
  if (reg == 2) return bits({19, 12, 11, 10});
  return bits({13, 14, 5, 4});
}

/// A scale with five bits of exponent, as the decoder reads it: 0 is no exception.
double widened_scale(std::uint8_t code) {
  return std::ldexp(1 + (code & 7) / 8.0, (code >> 3) - 10);
}

/// The packed matrix and its rows' factors.
struct Packed {
  explicit Packed(const TileLayout& l)
      : layout(l), bytes(l.bytes()), factors(l.factor_bytes() / sizeof(float)) {}
  void add(const formats::Matrix& m, RowPlace place) {
    pack_tiles(m, layout, place, bytes);
    if (!factors.empty()) pack_factors(m, layout, place, factors);
  }
  TileLayout layout;
  std::vector<std::byte> bytes;
  std::vector<float> factors;

  /// Element (r, c) as the tensor cores find it in rows of 128 bytes, their groups of 16 swizzled.
  double operand_value(std::int64_t r, std::int64_t c) const;
  /// Element (r, c) of the packed rows, from the registers of the multiplication: thread 4 (r % 8)
  /// + c % 8 / 2 of warp r / 16; register 2 (c % 16 / 8) + r % 16 / 8; half c % 2; step c / 16.
  double value(std::int64_t r, std::int64_t c) const {
    if (layout.code == TileCode::kE4m3Operand) return operand_value(r, c);
    const std::byte* tile =
        bytes.data() + (r / 64 * layout.col_tiles() + c / 64) * tile_bytes(layout.code);
    const std::int64_t row = r % 64, col = c % 64, step = col / 16;
    const std::int64_t thread = row / 16 * 32 + row % 8 * 4 + col % 8 / 2;
    const std::int64_t reg = col % 16 / 8 * 2 + row % 16 / 8, half = col % 2;
    const double factor = double(factors[std::size_t(r)]);
    if (layout.code == TileCode::kE4m3 || layout.code == TileCode::kE4m3Block) {
      const std::byte* word = tile + step / 2 * 2048 + thread * 16 + step % 2 * 8 + reg / 2 * 4;
      const int shift = int(half * 16 + (reg % 2 == 0 ? 8 : 0));
      const double code =
          double(formats::decode_e4m3(std::uint8_t(read<std::uint32_t>(word) >> shift)));
      if (layout.code == TileCode::kE4m3) return code * factor;
      return code * factor * double(read<float>(tile + 4096 + row % 16 / 8 * 4));
    }
    const auto word = read<std::uint32_t>(tile + thread * 16 + step * 4);
    const double code =
        double(formats::decode_e2m1(std::uint8_t(four_bits(word, int(reg), int(half)))));
    const std::int64_t pair_row = row / 16 * 8 + row % 8;
    const bool narrow = layout.code == TileCode::kNvfp4;
    const auto scale =
        std::uint8_t(tile[2048 + (narrow ? pair_row * 8 + row % 16 / 8 * 4 + step
                                         : pair_row * 4 + col / 32 * 2 + row % 16 / 8)]);
    // Decoding puts a code's bits at 2^-126 of its value, and NVFP4's scales at 2^118.
    if (layout.code == TileCode::kMxfp4)
      return code * factor * (scale == 0 ? 0 : std::ldexp(1.0, int(scale) - 127 - 126));
    return code * factor * widened_scale(scale) * 0x1p-8;
  }
};

double Packed::operand_value(std::int64_t r, std::int64_t c) const {
  const std::int64_t tile = r / 64 * layout.col_tiles() + c / 128, col = c % 128;
  const std::size_t at = std::size_t(tile * 8192 + r % 64 * 128 + ((col / 16) ^ (r % 8)) * 16);
  const double code = double(formats::decode_e4m3(std::uint8_t(bytes[at + std::size_t(col % 16)])));
  const std::byte* scales = bytes.data() + layout.row_tiles() * layout.col_tiles() * 8192;
  return code * double(factors[std::size_t(r)]) *
         double(read<float>(scales + tile * 8 + r % 16 / 8 * 4));
}

struct Case {
  const char* name;
  formats::WeightLayout weights;
  ActivationQuant inputs;
  TileCode code;
};
const Case kCases[] = {
    {"channels", formats::kFp8ChannelLayout, ActivationQuant::kNone, TileCode::kE4m3},
    {"tensor", formats::kFp8TensorLayout, ActivationQuant::kNone, TileCode::kE4m3},
    {"blocks", formats::kFp8BlockLayout, ActivationQuant::kNone, TileCode::kE4m3Block},
    {"channels, codes", formats::kFp8ChannelLayout, ActivationQuant::kFp8Token,
     TileCode::kE4m3Operand},
    {"tensor, codes", formats::kFp8TensorLayout, ActivationQuant::kFp8Tensor,
     TileCode::kE4m3Operand},
    {"blocks, codes", formats::kFp8BlockLayout, ActivationQuant::kFp8Block128,
     TileCode::kE4m3Operand},
    {"blocks, power-of-two codes", formats::kFp8BlockLayout, ActivationQuant::kFp8Block128Ue8m0,
     TileCode::kE4m3Operand},
    {"mxfp4", kMxfp4, ActivationQuant::kMxfp8, TileCode::kMxfp4},
    {"nvfp4", formats::kNvfp4Layout, ActivationQuant::kNvfp4, TileCode::kNvfp4},
    {"nvfp4 per 32", formats::kNvfp4WideLayout, ActivationQuant::kFp8Tensor, TileCode::kNvfp4Wide}};

TEST(TileCodes, EveryRegisterHoldsItsWeight) {
  for (const Case& c : kCases)
    for (const auto& [rows, cols] : {std::pair{64, 256}, {200, 330}, {8, 16}, {130, 66}}) {
      SCOPED_TRACE(c.name);
      const formats::Matrix m = test::make_matrix(c.weights, rows, cols, 3);
      const TileCode code = tile_code(c.weights, cols, c.inputs);
      if (cols > 128) {
        EXPECT_EQ(code, c.code);
      }
      Packed plain({.rows = rows, .cols = cols, .code = code});
      plain.add(m, RowPlace::kPlain);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t k = 0; k < cols; ++k)
          ASSERT_EQ(plain.value(r, k), m.value(r, k)) << r << " " << k;
      const std::int64_t end = plain.layout.col_tiles() * tile_cols(code);
      for (std::int64_t k = cols; k < end; ++k) EXPECT_EQ(plain.value(0, k), 0);
    }
}

TEST(TileCodes, GateAndUpKeepTheirOwnScales) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    constexpr std::int64_t kRows = 160, kCols = 288;
    const formats::Matrix gate = test::make_matrix(c.weights, kRows, kCols, 3);
    const formats::Matrix up = test::make_matrix(c.weights, kRows, kCols, 4);
    Packed both({.rows = 2 * 192, .cols = kCols, .code = c.code});
    both.add(gate, RowPlace::kGate);
    both.add(up, RowPlace::kUp);
    for (std::int64_t r = 0; r < kRows; ++r)
      for (std::int64_t k = 0; k < kCols; ++k) {
        ASSERT_EQ(both.value(paired_row(r, false), k), gate.value(r, k)) << r << " " << k;
        ASSERT_EQ(both.value(paired_row(r, true), k), up.value(r, k)) << r << " " << k;
      }
    EXPECT_NE(gate.value(5, 9), up.value(5, 9));
  }
}

// What a TP rank packs are the whole expert's weights, rows of gate and up and columns of down from
// where its shard begins, wherever the gate of cuda admits the cut.
TEST(TileCodes, AShardHoldsTheWholeExpertsWeights) {
  constexpr std::int64_t kHidden = 192;
  int cuts_inside = 0;
  for (const Case& c : kCases)
    for (const auto& [inter, tp] : {std::pair{256, 2}, {256, 4}, {96, 2}, {160, 3}}) {
      const ShardedWeights all{
          .layout = c.weights, .quant = c.inputs, .hidden = kHidden, .inter = inter, .tp = tp};
      if (!can_tile_shards(all).eligible()) continue;
      SCOPED_TRACE(testing::Message() << c.name << ", " << inter << " over " << tp);
      const formats::Matrix gate = test::make_matrix(c.weights, inter, kHidden, 3);
      const formats::Matrix up = test::make_matrix(c.weights, inter, kHidden, 4);
      const formats::Matrix down = test::make_matrix(c.weights, kHidden, inter, 5);
      for (std::int64_t rank = 0; rank < tp; ++rank) {
        const Shard shard = tp_shard(inter, tp, rank);
        if (shard.size == 0) continue;
        cuts_inside += shard.begin > 0 && shard.begin % 128 != 0;
        const TileCode rows_code =
            tile_code(formats::layout_from_row(c.weights, shard.begin), kHidden, c.inputs);
        const std::int64_t packed_rows = (shard.size + 127) / 128 * 256;
        Packed fc1({.rows = packed_rows, .cols = kHidden, .code = rows_code});
        fc1.add(formats::slice_rows(gate, shard.begin, shard.size), RowPlace::kGate);
        fc1.add(formats::slice_rows(up, shard.begin, shard.size), RowPlace::kUp);
        for (std::int64_t r = 0; r < shard.size; ++r)
          for (std::int64_t k = 0; k < kHidden; ++k) {
            ASSERT_EQ(fc1.value(paired_row(r, false), k), gate.value(shard.begin + r, k));
            ASSERT_EQ(fc1.value(paired_row(r, true), k), up.value(shard.begin + r, k));
          }
        const TileCode cols_code =
            tile_code(formats::layout_from_col(c.weights, shard.begin), shard.size, c.inputs);
        Packed fc2({.rows = kHidden, .cols = shard.size, .code = cols_code});
        fc2.add(formats::slice_cols(down, shard.begin, shard.size), RowPlace::kPlain);
        for (std::int64_t r = 0; r < kHidden; ++r)
          for (std::int64_t k = 0; k < shard.size; ++k)
            ASSERT_EQ(fc2.value(r, k), down.value(r, shard.begin + k)) << r << " " << k;
      }
    }
  EXPECT_GT(cuts_inside, 12) << "shards that begin inside 128 columns";
}

// Every exponent that a row may mix with others of the same octaves.
TEST(TileCodes, EveryExponentCode) {
  formats::Matrix m = test::make_matrix(kMxfp4, 16, 512, 8);
  std::vector<std::byte> scales(m.scales.begin(), m.scales.end());
  ASSERT_EQ(scales.size(), 256u);
  for (std::size_t i = 0; i < 255; ++i) scales[i] = std::byte(i);  // 255 is NaN, refused at load
  m.scales = scales;
  Packed p({.rows = 16, .cols = 512, .code = TileCode::kMxfp4});
  p.add(m, RowPlace::kPlain);
  for (std::int64_t r = 0; r < 16; ++r)
    for (std::int64_t c = 0; c < 512; ++c) ASSERT_EQ(p.value(r, c), m.value(r, c)) << r << " " << c;
}

// Subnormal ones and 0 among them; codes under a scale of 0 are 0, for decoding knows no such
// scale.
TEST(TileCodes, EveryBlockScale) {
  for (const formats::WeightLayout& layout : {formats::kNvfp4Layout, formats::kNvfp4WideLayout}) {
    const std::int64_t cols = 16 * layout.block_cols;
    formats::Matrix m = test::make_matrix(layout, 16, cols, 8);
    std::vector<std::byte> scales(m.scales.begin(), m.scales.end());
    ASSERT_EQ(scales.size(), 256u);
    for (std::size_t i = 0; i < 256; ++i) scales[i] = std::byte(i % 127);  // 127 is refused at load
    m.scales = scales;
    Packed p({.rows = 16, .cols = cols, .code = tile_code(layout, cols, ActivationQuant::kNvfp4)});
    p.add(m, RowPlace::kPlain);
    for (std::int64_t r = 0; r < 16; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        ASSERT_EQ(p.value(r, c), m.value(r, c)) << r << " " << c;
  }
}

TEST(TileCodes, ANanTakesItsRow) {
  formats::Matrix m = test::make_matrix(formats::kFp8ChannelLayout, 20, 64, 8);
  std::vector<std::byte> codes(m.codes.begin(), m.codes.end());
  codes[7 * 64 + 3] = std::byte(0x7f);
  codes[9 * 64 + 63] = std::byte(0xff);
  m.codes = codes;
  for (TileCode code : {TileCode::kE4m3, TileCode::kE4m3Operand}) {
    Packed p({.rows = 20, .cols = 64, .code = code});
    p.add(m, RowPlace::kPlain);
    for (std::int64_t r = 0; r < 20; ++r)
      EXPECT_EQ(std::isnan(p.factors[std::size_t(r)]), r == 7 || r == 9) << r;
    for (std::byte b : p.bytes) EXPECT_NE(b & std::byte(0x7f), std::byte(0x7f));
  }
}

// As a device packs them: some rows of tiles at a time from the stored rows of those alone, whose
// scales may begin inside a block, gate and up together.
/// `m` with a block of great scale, or a NaN, beyond the first columns of some rows.
formats::Matrix with_great_ones(const formats::Matrix& m) {
  struct Kept {
    std::vector<std::byte> codes, scales;
  };
  auto kept = std::make_shared<Kept>(
      Kept{{m.codes.begin(), m.codes.end()}, {m.scales.begin(), m.scales.end()}});
  formats::Matrix out = m;
  const std::size_t row_bytes = m.codes.size() / std::size_t(m.rows);
  for (std::size_t row : {5, 40, 149}) {
    if (m.layout.scale == formats::ScaleType::kE8m0)
      kept->scales[(row + 1) * std::size_t(m.layout.scale_cols(m.cols)) - 2] = std::byte(140);
    if (m.layout.element == Element::kE4m3) kept->codes[row * row_bytes + 250] = std::byte(0x7f);
  }
  out.codes = kept->codes, out.scales = kept->scales;
  out.storage = kept;
  return out;
}

TEST(TileCodes, PiecesOfAMatrixGiveTheWholesBytes) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    constexpr std::int64_t kRows = 150, kCols = 294, kHalf = kTileRows / 2;
    const formats::Matrix gate = with_great_ones(test::make_matrix(c.weights, kRows, kCols, 3));
    const formats::Matrix up = test::make_matrix(c.weights, kRows, kCols, 4);
    Packed whole({.rows = 2 * 192, .cols = kCols, .code = c.code});
    whole.add(gate, RowPlace::kGate);
    whole.add(up, RowPlace::kUp);
    const auto from = [](const formats::Matrix& m, std::int64_t first) {
      StoredRows rows = stored_rows(m);
      rows.codes = rows.code_row(first);
      rows.scales = rows.scale_row(first, bytes_of(m.layout.scale));
      rows.first = first;
      return rows;
    };
    const TileLayout& l = whole.layout;
    for (std::int64_t row = 0; row < l.row_tiles(); ++row) {
      const std::int64_t first = std::min(row * kHalf, kRows);
      const TileSources s{
          .gate = from(gate, first), .up = from(up, first), .paired = true, .code = c.code};
      std::array<std::uint32_t, std::size_t(kTileRows)> marks{};
      for (std::int64_t r = 0; r < kTileRows; ++r)  // as a warp of three lanes would
        for (std::int64_t lane = 0; lane < 3; ++lane)
          marks[std::size_t(r)] = std::max(marks[std::size_t(r)],
                                           row_mark(source_row(s, row * 64 + r), c.code, lane, 3));
      for (std::int64_t col = 0; col < l.col_tiles(); ++col) {
        const std::int64_t tile = row * l.col_tiles() + col;
        for (std::int64_t u = 0; u < tile_units(c.code); ++u) {
          const TileUnit unit = tile_unit(s, {row, col, u}, marks.data());
          ASSERT_EQ(
              std::memcmp(&unit, &whole.bytes[std::size_t(tile * tile_bytes(c.code) + u * 16)],
                          sizeof unit),
              0)
              << row << " " << col << " " << u;
        }
        for (int which = 0; which < 2 && c.code == TileCode::kE4m3Operand; ++which)
          ASSERT_EQ(operand_scale(s, {row, col}, which),
                    read<float>(&whole.bytes[std::size_t(l.scales_at() + tile * 8 + which * 4)]));
      }
      for (std::int64_t r = 0; r < kTileRows; ++r)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(
                      row_factor(source_row(s, row * 64 + r), c.code, marks[std::size_t(r)])),
                  std::bit_cast<std::uint32_t>(whole.factors[std::size_t(row * 64 + r)]));
    }
  }
}

// Blocks of fp32 scales must begin where a shard does, unless the shard is within one; 4-bit codes
// and bf16 may be cut at any multiple of 32.
TEST(TileCodes, ShardsHaveTilesWhereNoBlockIsCut) {
  const auto verdict = [](const formats::WeightLayout& l, ActivationQuant quant, std::int64_t inter,
                          std::int64_t tp) {
    return can_tile_shards({.layout = l, .quant = quant, .hidden = 512, .inter = inter, .tp = tp});
  };
  const formats::WeightLayout nvfp4{.element = Element::kE2m1,
                                    .scale = ScaleType::kE4m3,
                                    .block_rows = 1,
                                    .block_cols = 16,
                                    .global_scale = true};
  const formats::WeightLayout channel{
      .element = Element::kE4m3, .scale = ScaleType::kF32, .block_rows = 1, .block_cols = 0};
  for (std::int64_t tp : {1, 2, 3, 4, 8}) {
    EXPECT_TRUE(verdict({.element = Element::kBf16}, ActivationQuant::kNone, 96, tp).eligible());
    EXPECT_TRUE(verdict(kMxfp4, ActivationQuant::kMxfp8, 768, tp).eligible()) << tp;
    EXPECT_TRUE(verdict(nvfp4, ActivationQuant::kNvfp4, 96, tp).eligible()) << tp;
    EXPECT_TRUE(verdict(channel, ActivationQuant::kFp8Token, 96, tp).eligible()) << tp;
  }
  const auto blocks = [&](std::int64_t inter, std::int64_t tp) {
    return verdict(formats::kFp8BlockLayout, ActivationQuant::kFp8Block128, inter, tp);
  };
  for (const auto& [inter, tp] :
       {std::pair{2048, 1}, {2048, 8}, {768, 2}, {768, 6}, {96, 2}, {160, 4}})
    EXPECT_TRUE(blocks(inter, tp).eligible()) << inter << " over " << tp;
  for (const auto& [inter, tp] : {std::pair{768, 4}, {96, 3}, {1408, 2}}) {
    const Eligibility no = blocks(inter, tp);
    ASSERT_FALSE(no.eligible()) << inter << " over " << tp;
    EXPECT_EQ(no.reason(), Reject::kShapeUnaligned);
    EXPECT_THAT(no.detail(), testing::HasSubstr(std::to_string(inter)));
    EXPECT_THAT(no.detail(), testing::HasSubstr("128x128"));
  }
}

TEST(TileCodes, WhatHasNoTilesIsNamed) {
  const auto text = [](formats::WeightLayout l, ActivationQuant inputs) {
    return test::usage_error_of([&] { tile_code(l, 256, inputs); });
  };
  formats::WeightLayout odd = formats::kFp8BlockLayout;
  odd.block_cols = 64;
  EXPECT_THAT(text(odd, ActivationQuant::kFp8Block128), testing::HasSubstr("128x64"));
  EXPECT_THAT(text(kMxfp4, ActivationQuant::kFp8Block128),
              testing::HasSubstr("activations with scales per 128"));
  EXPECT_THAT(text({.element = Element::kFp16}, ActivationQuant::kNone),
              testing::HasSubstr("fp16"));
  EXPECT_EQ(tile_code({.element = Element::kBf16}, 256, ActivationQuant::kNone), TileCode::kBf16);
  const formats::Matrix m = test::make_matrix({.element = Element::kBf16}, 64, 64, 1);
  Packed p({.rows = 64, .cols = 64, .code = TileCode::kE4m3});
  EXPECT_THAT(test::usage_error_of([&] { p.add(m, RowPlace::kPlain); }),
              testing::HasSubstr("laid out for e4m3"));
}

}  // namespace
}  // namespace switchyard::ops
