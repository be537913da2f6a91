// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/scale_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/slow_codec.h"

namespace switchyard::formats {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr ScaleLayout kAll[] = {ScaleLayout::kLinear, ScaleLayout::k128x4, ScaleLayout::k8x4};
constexpr ScaleGrid kGrids[] = {{0, 0}, {0, 5},    {1, 1},   {7, 3},    {8, 4},
                                {9, 5}, {127, 12}, {128, 4}, {129, 13}, {300, 90}};

Bytes distinct(ScaleGrid grid) {
  Bytes b(std::size_t(grid.rows * grid.cols));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = std::uint8_t(1 + i % 251);
  return b;
}

TEST(ScaleLayout, PublishedOffsets) {
  struct Row {
    std::int64_t row, col, wide, narrow;
  };
  const Row rows[] = {{1, 0, 16, 4},         {31, 7, 1011, 351},   {32, 0, 4, 384},
                      {127, 11, 1535, 1535}, {128, 0, 1536, 1536}, {200, 11, 2699, 2467}};
  ScaleGrid grid{256, 12};
  for (const Row& r : rows) {
    EXPECT_EQ(scale_offset(ScaleLayout::k128x4, grid, r.row, r.col), r.wide);
    EXPECT_EQ(scale_offset(ScaleLayout::k8x4, grid, r.row, r.col), r.narrow);
    EXPECT_EQ(scale_offset(ScaleLayout::kLinear, grid, r.row, r.col), r.row * 12 + r.col);
  }
}

TEST(ScaleLayout, PaddedSizes) {
  EXPECT_EQ(padded_scale_bytes(ScaleLayout::kLinear, {129, 13}), 129 * 13);
  EXPECT_EQ(padded_scale_bytes(ScaleLayout::k128x4, {129, 13}), 256 * 16);
  EXPECT_EQ(padded_scale_bytes(ScaleLayout::k8x4, {129, 13}), 136 * 16);
  EXPECT_EQ(padded_scale_bytes(ScaleLayout::k128x4, {0, 13}), 0);
}

TEST(ScaleLayout, EveryPaddedCellHasItsOwnByte) {
  for (ScaleLayout layout : kAll) {
    for (ScaleGrid grid : kGrids) {
      std::int64_t size = padded_scale_bytes(layout, grid);
      std::int64_t cols = (grid.cols + scale_tile_cols(layout) - 1) / scale_tile_cols(layout) *
                          scale_tile_cols(layout);
      std::set<std::int64_t> seen;
      for (std::int64_t r = 0; cols > 0 && r < size / cols; ++r)
        for (std::int64_t c = 0; c < cols; ++c) seen.insert(scale_offset(layout, grid, r, c));
      ASSERT_EQ(std::int64_t(seen.size()), size);
      if (size > 0) {
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), size - 1);
      }
    }
  }
}

TEST(ScaleLayout, ConvertsBothWaysAndZeroesThePadding) {
  for (ScaleLayout layout : kAll) {
    for (ScaleGrid grid : kGrids) {
      Bytes linear = distinct(grid);
      Bytes tiled(std::size_t(padded_scale_bytes(layout, grid)), 0xee), back(linear.size(), 0xee);
      scales_from_linear(layout, grid, linear, tiled);
      std::int64_t zeros = 0;
      for (std::uint8_t b : tiled) zeros += b == 0;
      EXPECT_EQ(zeros, std::int64_t(tiled.size() - linear.size()));
      for (std::int64_t r = 0; r < grid.rows; ++r)
        for (std::int64_t c = 0; c < grid.cols; ++c)
          ASSERT_EQ(tiled[std::size_t(scale_offset(layout, grid, r, c))],
                    linear[std::size_t(r * grid.cols + c)]);
      scales_to_linear(layout, grid, tiled, back);
      EXPECT_EQ(back, linear);
    }
  }
}

TEST(ScaleLayout, OneLayoutReadAsAnotherIsSeen) {
  ScaleGrid grid{256, 12};
  Bytes linear = distinct(grid), tiled(linear.size()), back(linear.size());
  scales_from_linear(ScaleLayout::k128x4, grid, linear, tiled);
  for (ScaleLayout wrong : {ScaleLayout::kLinear, ScaleLayout::k8x4}) {
    scales_to_linear(wrong, grid, tiled, back);
    EXPECT_NE(back, linear);
  }
}

TEST(ScaleLayout, WrongLengthsAreNamed) {
  ScaleGrid grid{5, 3};
  Bytes linear(15), tiled(512);
  auto convert = [&](std::size_t a, std::size_t b) {
    return test::usage_error_or_empty([&] {
      scales_from_linear(ScaleLayout::k128x4, grid, {linear.data(), a}, {tiled.data(), b});
    });
  };
  EXPECT_NE(convert(14, 512).find("14 linear scales for a grid of 5 x 3"), std::string::npos);
  EXPECT_NE(convert(15, 500).find("takes 512"), std::string::npos);
  EXPECT_EQ(convert(15, 512), "");
  EXPECT_NE(test::usage_error_or_empty([&] {
              scales_to_linear(ScaleLayout::k8x4, {-1, 3}, tiled, linear);
            }).find("-1"),
            std::string::npos);
  EXPECT_EQ(to_string(ScaleLayout::k128x4), "128x4");
  EXPECT_EQ(to_string(ScaleLayout::k8x4), "8x4");
  EXPECT_EQ(to_string(ScaleLayout::kLinear), "linear");
}

}  // namespace
}  // namespace switchyard::formats
