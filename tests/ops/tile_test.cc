// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/tile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"
#include "tests/cases/moe_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::ops {
namespace {

constexpr formats::WeightLayout kBf16{.element = formats::Element::kBf16};

std::uint16_t bits_at(std::span<const std::byte> packed, std::size_t offset) {
  std::uint16_t bits;
  std::memcpy(&bits, packed.data() + offset, sizeof(bits));
  return bits;
}

std::uint16_t bits_at(const formats::Matrix& m, std::int64_t r, std::int64_t c) {
  return bits_at(m.codes, std::size_t(2 * (r * m.cols + c)));
}

FfnShape shape_of(std::int64_t hidden, std::int64_t inter, bool gated, bool bias) {
  FfnShape s;
  s.hidden = hidden;
  s.inter = inter;
  s.experts = s.top_k = 1;
  s.gated = gated;
  s.bias = bias;
  s.weights = kBf16;
  return s;
}

TEST(Tile, OffsetsAreAPermutationOfTheTiles) {
  for (const auto& [rows, cols] : {std::pair{64, 64}, {1, 1}, {65, 130}, {200, 64}}) {
    const TileLayout l{.rows = rows, .cols = cols};
    std::set<std::size_t> seen;
    for (std::int64_t r = 0; r < l.row_tiles() * kTileRows; ++r)
      for (std::int64_t c = 0; c < l.col_tiles() * kTileCols; ++c) seen.insert(l.offset(r, c));
    EXPECT_EQ(seen.size() * 2, l.bytes());
    EXPECT_EQ(*seen.rbegin() + 2, l.bytes());
  }
}

// What the tensor cores expect, written out by hand: rows of 128 bytes, 16-byte groups exchanged by
// the row's number, tiles of K in a row.
TEST(Tile, OffsetsFollowTheSwizzle) {
  const TileLayout l{.rows = 128, .cols = 192};
  EXPECT_EQ(l.offset(0, 0), 0u);
  EXPECT_EQ(l.offset(0, 9), 18u);
  EXPECT_EQ(l.offset(1, 0), 128u + 16u);
  EXPECT_EQ(l.offset(3, 8), 3u * 128u + 32u);
  EXPECT_EQ(l.offset(8, 0), 1024u);
  EXPECT_EQ(l.offset(0, 64), 8192u);
  EXPECT_EQ(l.offset(64, 0), 3u * 8192u);
  const TileLayout codes{.rows = 128, .cols = 192, .code = TileCode::kE4m3Operand};
  EXPECT_EQ(codes.offset(0, 9), 9u);
  EXPECT_EQ(codes.offset(1, 0), 128u + 16u);
  EXPECT_EQ(codes.offset(3, 16), 3u * 128u + 32u);
  EXPECT_EQ(codes.offset(0, 128), 8192u);
  EXPECT_EQ(codes.offset(64, 0), 2u * 8192u);
  EXPECT_EQ(codes.scales_at(), 4 * 8192);
  EXPECT_EQ(codes.bytes(), 4u * 8192u + 64u);
}

// Rows for the kernels lie as a column of tiles does, with room for experts that start at 8.
TEST(Tile, RowsLieInTheSameSwizzle) {
  std::vector<std::byte> memory(2 * 16 * 128);
  const RowTiles rows{.data = memory.data(), .capacity = 16};
  EXPECT_EQ(rows.bytes(65), memory.size());
  EXPECT_EQ(rows.at(3, 1) - rows.data, 3 * 128 + 32);
  EXPECT_EQ(rows.at(9, 8) - rows.data, 16 * 128 + 9 * 128 + 16);
  const RowTiles codes{.data = memory.data(), .capacity = 16, .codes = true};
  EXPECT_EQ(codes.bytes(129), memory.size());
  EXPECT_EQ(codes.at(3, 1) - codes.data, 3 * 128 + 32);
  EXPECT_EQ(sorted_capacity(8, 128), 64);
  EXPECT_EQ(sorted_capacity(32768, 128), 32768 + 7 * 128);
  EXPECT_EQ(sorted_capacity(0, 4), 0);
}

TEST(Tile, PairsPutGateAndUpEightRowsApart) {
  EXPECT_EQ(paired_row(0, false), 0);
  EXPECT_EQ(paired_row(0, true), 8);
  EXPECT_EQ(paired_row(7, true), 15);
  EXPECT_EQ(paired_row(8, false), 16);
  EXPECT_EQ(paired_row(77, true), 157);
}

TEST(Tile, AnExpertsWeightsAreWhereTheKernelsReadThem) {
  for (bool gated : {true, false}) {
    const FfnShape s = shape_of(70, 37, gated, true);
    checkpoint::ExpertWeights e;
    if (gated) e.gate = test::make_matrix(kBf16, 37, 70, 1);
    e.up = test::make_matrix(kBf16, 37, 70, 2);
    e.down = test::make_matrix(kBf16, 70, 37, 3);
    if (gated) e.gate_bias.assign(37, 1.5f);
    e.up_bias.assign(37, 2.5f);
    e.down_bias.assign(70, 3.5f);
    const ExpertLayout l = tile_expert_layout(s);
    std::vector<std::byte> packed(l.bytes, std::byte(0xff));
    pack_expert_tiles(s, l, e, 1, packed);
    const TileLayout fc1 = fc1_tiles(s), fc2 = fc2_tiles(s);
    EXPECT_EQ(fc1.rows, gated ? 128 : 64);
    const auto codes = std::span<const std::byte>(packed);
    for (std::int64_t r = 0; r < 64; ++r)
      for (std::int64_t c = 0; c < 128; ++c) {
        const bool in = r < 37 && c < 70;
        const std::int64_t row = gated ? paired_row(r, true) : r;
        EXPECT_EQ(bits_at(codes, l.up_codes + fc1.offset(row, c)), in ? bits_at(e.up, r, c) : 0);
        if (!gated) continue;
        EXPECT_EQ(bits_at(codes, l.up_codes + fc1.offset(paired_row(r, false), c)),
                  in ? bits_at(*e.gate, r, c) : 0);
      }
    for (std::int64_t r = 0; r < 128; ++r)
      for (std::int64_t c = 0; c < 64; ++c)
        EXPECT_EQ(bits_at(codes, l.down_codes + fc2.offset(r, c)),
                  r < 70 && c < 37 ? bits_at(e.down, r, c) : 0);
    float bias[3] = {};
    std::memcpy(&bias[0], packed.data() + l.gate_bias, 4);
    std::memcpy(&bias[1], packed.data() + l.up_bias + 36 * 4, 4);
    std::memcpy(&bias[2], packed.data() + l.down_bias + 69 * 4, 4);
    if (gated) {
      EXPECT_EQ(bias[0], 1.5f);
    }
    EXPECT_EQ(bias[1], 2.5f);
    EXPECT_EQ(bias[2], 3.5f);
  }
}

TEST(Tile, RefusesWhatHasNoKernelAndPacksTheNext) {
  FfnShape s = shape_of(64, 64, false, false);
  s.weights.element = formats::Element::kFp16;
  EXPECT_THAT(test::usage_error_of([&] { tile_expert_layout(s); }), testing::HasSubstr("fp16"));
  s.weights = kBf16;
  const ExpertLayout l = tile_expert_layout(s);
  checkpoint::ExpertWeights e;
  e.up = test::make_matrix(kBf16, 64, 63, 2);
  e.down = test::make_matrix(kBf16, 64, 64, 3);
  std::vector<std::byte> packed(l.bytes);
  EXPECT_THAT(test::usage_error_of([&] { pack_expert_tiles(s, l, e, 1, packed); }),
              testing::HasSubstr("[64, 63]"));
  e.up = test::make_matrix(kBf16, 64, 64, 2);
  pack_expert_tiles(s, l, e, 1, packed);
  EXPECT_EQ(bits_at(packed, l.up_codes), bits_at(e.up, 0, 0));
}

// Codes of the right kind with other scales would be read where there are none.
TEST(Tile, RefusesAnExpertOfAnotherLayout) {
  const formats::WeightLayout blocks = formats::kMxfp4Layout;
  FfnShape s = shape_of(64, 64, false, false);
  s.weights = blocks;
  const ExpertLayout l = tile_expert_layout(s);
  std::vector<std::byte> packed(l.bytes);
  const auto refusal = [&](const checkpoint::ExpertWeights& e) {
    return test::usage_error_of([&] { pack_expert_tiles(s, l, e, 1, packed); });
  };
  checkpoint::ExpertWeights good;
  good.up = test::make_matrix(blocks, 64, 64, 2);
  good.down = test::make_matrix(blocks, 64, 64, 3);
  checkpoint::ExpertWeights e = good;
  e.down = test::make_matrix(formats::kNvfp4Layout, 64, 64, 3);
  EXPECT_THAT(refusal(e), testing::HasSubstr("which is not the layout"));
  e = good;
  e.up.layout.block_cols = 16;
  EXPECT_THAT(refusal(e), testing::HasSubstr("which is not the layout"));
  e = good;
  e.up.codes = e.up.codes.first(e.up.codes.size() - 1);
  EXPECT_THAT(refusal(e), testing::HasSubstr("bytes of codes"));
  e = good;
  e.up.scales = e.up.scales.first(e.up.scales.size() - 1);
  EXPECT_THAT(refusal(e), testing::HasSubstr("of scales"));
  e = good;
  e.up_bias.assign(64, 1);
  EXPECT_THAT(refusal(e), testing::HasSubstr("built without biases"));
  pack_expert_tiles(s, l, good, 1, packed);
}

// The tier depends on sizes only, and takes more tokens than an expert has on average.
TEST(Tile, TiersFollowTheTokens) {
  EXPECT_EQ(token_tile(1, 8, 128), 8);
  EXPECT_EQ(token_tile(8, 64, 1), 8);
  EXPECT_EQ(token_tile(9, 72, 128), 16);
  EXPECT_EQ(token_tile(64, 512, 128), 16);
  EXPECT_EQ(token_tile(512, 2048, 128), 32);
  EXPECT_EQ(token_tile(512, 4096, 128), 64);
  EXPECT_EQ(token_tile(4096, 32768, 128), 128);
}

// Larger tiles pay from so many rows an expert on, for the operands that they are built for.
TEST(Tile, PrefillTakesManyRowsOfBf16) {
  DeviceGemm gemm;
  gemm.layout = {.rows = 64, .cols = 64};
  gemm.experts = 128;
  gemm.max_rows = 96 * gemm.experts;
  EXPECT_TRUE(prefers_prefill(gemm));
  gemm.max_rows -= 1;
  EXPECT_FALSE(prefers_prefill(gemm));
  EXPECT_TRUE(serves_prefill(gemm)) << "forced, it runs";
  gemm.max_rows = 1 << 20;
  gemm.x.planes = 2;
  EXPECT_FALSE(prefers_prefill(gemm)) << "fp16 activations";
  gemm.x.planes = 1;
  gemm.layout.code = TileCode::kMxfp4;
  EXPECT_FALSE(prefers_prefill(gemm));
  gemm.layout.code = TileCode::kBf16;
  gemm.experts = kPrefillExperts + 1;
  EXPECT_FALSE(prefers_prefill(gemm)) << "more than its table holds";
}

}  // namespace
}  // namespace switchyard::ops
