// SPDX-License-Identifier: Apache-2.0
// What a packer on a GPU does on the host: pieces of bounded size, each enough for its tiles.
#include "switchyard/ops/grouped_ffn/expert_packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "switchyard/leaves/registry.h"
#include "switchyard/ops/grouped_ffn/tile_ffn.h"
#include "switchyard/ops/grouped_gemm/pack_tiles.h"
#include "tests/cases/moe_case.h"

namespace switchyard::ops {
namespace {

FfnShape shape_of(const leaves::Leaf& leaf, std::int64_t hidden, std::int64_t inter) {
  return {.hidden = hidden,
          .inter = inter,
          .experts = 1,
          .top_k = 1,
          .bias = true,
          .weights = leaf.weights,
          .quant = leaf.activation};
}

/// Every leaf that has tiles.
std::vector<const leaves::Leaf*> tiled() { return leaves::all_leaves(Device::kCuda); }

// The tiles of a piece read nothing but the piece: their bytes are the whole matrix's when the rest
// of it is gone, and the piece keeps to its size.
TEST(ExpertPacker, APieceIsEnoughForItsTiles) {
  ASSERT_FALSE(tiled().empty());
  for (const leaves::Leaf* leaf : tiled())
    for (const auto& [rows, cols] : {std::pair{300, 330}, {64, 64}, {2, 34}}) {
      SCOPED_TRACE(leaf->id.str() + " " + std::to_string(rows));
      const formats::Matrix gate = test::make_matrix(leaf->weights, rows, cols, 3);
      const formats::Matrix up = test::make_matrix(leaf->weights, rows, cols, 4);
      const TileCode code = tile_code(leaf->weights, cols, leaf->activation);
      const TileLayout l{.rows = 2 * ((rows + 63) / 64 * 64), .cols = cols, .code = code};
      std::vector<std::byte> whole(l.bytes());
      pack_tiles(gate, l, RowPlace::kGate, whole);
      pack_tiles(up, l, RowPlace::kUp, whole);
      const TileSources s{stored_rows(gate), stored_rows(up), true, code};
      for (std::int64_t count : {1, 3}) {
        std::vector<std::byte> host(piece_bytes(s, count)), moved;
        for (std::int64_t first = 0; first < l.row_tiles(); first += count) {
          const TileRange range{first, std::min(count, l.row_tiles() - first)};
          std::fill(host.begin(), host.end(), std::byte(0xa5));
          moved.resize(host.size());  // where the device would have it
          const StagedPiece piece = stage_piece(s, range, host.data(), moved.data());
          ASSERT_LE(piece.bytes, host.size());
          std::memcpy(moved.data(), host.data(), piece.bytes);
          std::fill(host.begin(), host.end(), std::byte(0x5a));
          for (std::int64_t row = first; row < first + range.count; ++row) {
            std::uint32_t marks[kTileRows];
            for (std::int64_t r = 0; r < kTileRows; ++r)
              marks[r] = row_mark(source_row(piece.sources, row * kTileRows + r), code, 0, 1);
            for (std::int64_t u = 0; u < l.col_tiles() * tile_units(code); ++u) {
              const TileUnit unit = tile_unit(
                  piece.sources, {row, u / tile_units(code), u % tile_units(code)}, marks);
              const std::size_t at =
                  std::size_t(row * l.col_tiles() * tile_bytes(code) + u * kUnitBytes);
              ASSERT_EQ(std::memcmp(&unit, &whole[at], sizeof unit), 0) << row << " " << u;
            }
          }
        }
      }
    }
}

TEST(ExpertPacker, PiecesFillTheBytesAndNeverNone) {
  for (const leaves::Leaf* leaf : tiled()) {
    const formats::Matrix m = test::make_matrix(leaf->weights, 700, 330, 3);
    const TileSources s{stored_rows(m), {}, false, TileCode::kBf16};
    for (std::size_t bytes : {std::size_t(0), std::size_t(100'000), std::size_t(1) << 20}) {
      const std::int64_t tiles = piece_row_tiles(s, bytes);
      EXPECT_GE(tiles, 1);
      EXPECT_TRUE(tiles == 1 || piece_bytes(s, tiles) <= bytes) << bytes;
      EXPECT_GT(piece_bytes(s, tiles + 1), bytes);
    }
  }
}

// Published layers, and one so wide that a single row of tiles is more than a usual piece.
TEST(ExpertPacker, ScratchIsBounded) {
  for (const leaves::Leaf* leaf : tiled())
    for (const auto& [hidden, inter] : {std::pair<std::int64_t, std::int64_t>{7168, 2048},
                                        {4096, 14336},
                                        {5120, 8192},
                                        {2880, 2880},
                                        {2048, 768}}) {
      const FfnShape s = shape_of(*leaf, hidden, inter);
      const auto scratch = PackerScratch::of(s, tile_expert_layout(s));
      EXPECT_LE(scratch.device_bytes(), std::size_t(18) << 20) << leaf->id.str() << " " << hidden;
      EXPECT_LE(scratch.host_bytes(), scratch.device_bytes());
    }
  const FfnShape wide = shape_of(*tiled().front(), 1 << 20, 64);
  const auto scratch = PackerScratch::of(wide, tile_expert_layout(wide));
  EXPECT_GE(scratch.staging, std::size_t(64) << 20);
  EXPECT_EQ(scratch.fc1_row_tiles, 1);
}

// What TP ranks hold: columns from a block's first on, or none, which cut no block.
TEST(ExpertPacker, ShardsHaveScratch) {
  for (const leaves::Leaf* leaf : tiled())
    for (const auto& [begin, inter] : {std::pair<std::int64_t, std::int64_t>{128, 32}, {96, 0}}) {
      FfnShape s = shape_of(*leaf, 128, inter);
      s.inter_begin = begin;
      const auto scratch = PackerScratch::of(s, tile_expert_layout(s));
      EXPECT_GE(scratch.staging, 4 * sizeof(float)) << leaf->id.str() << " " << inter;
      EXPECT_EQ(scratch.fc1_row_tiles, fc1_tiles(s).row_tiles());
    }
}

// No more than its matrices need, in one piece each.
TEST(ExpertPacker, ASmallLayerTakesLittle) {
  const FfnShape s = shape_of(*tiled().front(), 128, 96);
  const auto scratch = PackerScratch::of(s, tile_expert_layout(s));
  EXPECT_LE(scratch.device_bytes(), std::size_t(256) << 10);
  EXPECT_EQ(scratch.fc1_row_tiles, fc1_tiles(s).row_tiles());
  EXPECT_EQ(scratch.fc2_row_tiles, fc2_tiles(s).row_tiles());
}

}  // namespace
}  // namespace switchyard::ops
