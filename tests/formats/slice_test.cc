// SPDX-License-Identifier: Apache-2.0
// Slices of stored matrices against plain loops over the whole one: every weight keeps its value,
// also where a scale block is cut.
#include "switchyard/formats/slice.h"

#include <gmock/gmock.h>

#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp4.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "tests/cases/moe_case.h"
#include "tests/support/usage_error.h"

namespace switchyard::formats {
namespace {

using test::make_matrix;
using test::usage_error_of;
using testing::HasSubstr;

constexpr std::int64_t kRows = 300, kCols = 360;

std::vector<WeightLayout> layouts() {
  return {
      {.element = Element::kF32},
      {.element = Element::kBf16},
      {.element = Element::kFp16},
      kFp8BlockLayout,
      kFp8ChannelLayout,
      kFp8TensorLayout,
      kMxfp8Layout,
      kMxfp4Layout,
      kNvfp4Layout,
      kNvfp4WideLayout,
      {.element = Element::kE4m3, .scale = ScaleType::kF32, .block_rows = 96, .block_cols = 64}};
}

std::string describe(const WeightLayout& l) {
  return cat(to_string(l.element), " ", to_string(l.scale), " ", l.block_rows, "x", l.block_cols);
}

struct Cut {
  std::int64_t begin, size;
};
// On blocks of 128, inside one, across one, from an odd number of steps on, the end, nothing.
const Cut kCuts[] = {{0, 128}, {128, 100}, {96, 96}, {32, 32}, {64, 192}, {192, 108}, {0, 0}};

/// True when weight (r, c) of the slice is weight (r0 + r, c0 + c) of the whole matrix, everywhere.
bool same_values(const Matrix& slice, const Matrix& whole, std::int64_t r0, std::int64_t c0) {
  for (std::int64_t r = 0; r < slice.rows; ++r) {
    std::vector<float> row(std::size_t(slice.cols)), all(std::size_t(whole.cols));
    slice.decode_row(r, row);
    whole.decode_row(r0 + r, all);
    for (std::int64_t c = 0; c < slice.cols; ++c)
      if (slice.value(r, c) != whole.value(r0 + r, c0 + c) ||
          row[std::size_t(c)] != all[std::size_t(c0 + c)])
        return false;
  }
  return true;
}

TEST(Slice, RowsKeepTheirValues) {
  for (const WeightLayout& l : layouts()) {
    Matrix whole = make_matrix(l, kRows, kCols, 3);
    whole.input_scale = 0.25F;
    for (const Cut& cut : kCuts) {
      const Matrix slice = slice_rows(whole, cut.begin, cut.size);
      ASSERT_NO_THROW(slice.check("slice")) << describe(l);
      EXPECT_EQ(slice.rows, cut.size);
      EXPECT_EQ(slice.cols, kCols);
      EXPECT_EQ(slice.layout, layout_from_row(l, cut.begin)) << describe(l) << " " << cut.begin;
      EXPECT_EQ(slice.input_scale, whole.input_scale);
      EXPECT_EQ(slice.global_scale, whole.global_scale);
      EXPECT_TRUE(same_values(slice, whole, cut.begin, 0)) << describe(l) << " " << cut.begin;
      if (cut.size > 0 && cut.begin > 0) {
        EXPECT_FALSE(same_values(slice, whole, cut.begin - 1, 0)) << "control: " << describe(l);
      }
    }
  }
}

TEST(Slice, ColumnsKeepTheirValues) {
  for (const WeightLayout& l : layouts()) {
    const Matrix whole = make_matrix(l, kRows, kCols, 4);
    for (const Cut& cut : kCuts) {
      const Matrix slice = slice_cols(whole, cut.begin, cut.size);
      ASSERT_NO_THROW(slice.check("slice")) << describe(l);
      EXPECT_EQ(slice.rows, kRows);
      EXPECT_EQ(slice.cols, cut.size);
      EXPECT_EQ(slice.layout, layout_from_col(l, cut.begin)) << describe(l) << " " << cut.begin;
      EXPECT_TRUE(same_values(slice, whole, 0, cut.begin)) << describe(l) << " " << cut.begin;
      if (cut.size > 0 && cut.begin > 0) {
        EXPECT_FALSE(same_values(slice, whole, 0, cut.begin - 2)) << "control: " << describe(l);
      }
    }
  }
}

// What a grid that restarts at the slice's start would give: other values.
TEST(Slice, TheGridDoesNotRestartAtTheCut) {
  const Matrix whole = make_matrix(kFp8BlockLayout, kRows, kCols, 5);
  Matrix rows = slice_rows(whole, 96, 192), cols = slice_cols(whole, 96, 192);
  EXPECT_EQ(rows.layout.block_rows, 32);
  EXPECT_EQ(rows.layout.block_cols, 128);
  EXPECT_EQ(cols.layout.block_rows, 128);
  EXPECT_EQ(cols.layout.block_cols, 32);
  rows.layout = cols.layout = kFp8BlockLayout;
  rows.scales = whole.scales.first(
      std::size_t(kFp8BlockLayout.scale_rows(192) * kFp8BlockLayout.scale_cols(kCols) * 4));
  EXPECT_FALSE(same_values(rows, whole, 96, 0));
  cols.scales = whole.scales.first(
      std::size_t(kFp8BlockLayout.scale_rows(kRows) * kFp8BlockLayout.scale_cols(192) * 4));
  EXPECT_FALSE(same_values(cols, whole, 0, 96));
}

TEST(Slice, OfASliceAndAfterItsSource) {
  for (const WeightLayout& l : layouts()) {
    const Matrix whole = make_matrix(l, kRows, kCols, 6);
    Matrix inner;
    {
      const Matrix outer = slice_rows(slice_cols(whole, 96, 256), 96, 160);
      inner = slice_cols(slice_rows(outer, 32, 96), 64, 130);
    }
    EXPECT_TRUE(same_values(inner, whole, 128, 160)) << describe(l);
  }
}

TEST(Slice, NibblesAndExtents) {
  const Matrix whole = make_matrix(kNvfp4Layout, 8, 64, 7);
  EXPECT_THAT(usage_error_of([&] { slice_cols(whole, 3, 8); }), HasSubstr("even columns"));
  EXPECT_THAT(usage_error_of([&] { slice_cols(whole, 4, 7); }), HasSubstr("even columns"));
  EXPECT_THROW(slice_cols(whole, 32, 34), InternalError);
  EXPECT_THROW(slice_rows(whole, 4, 5), InternalError);
  EXPECT_THROW(slice_rows(whole, -1, 2), InternalError);
  EXPECT_TRUE(same_values(slice_cols(whole, 2, 8), whole, 0, 2));
}

}  // namespace
}  // namespace switchyard::formats
