// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/scale_layout.h"

#include <algorithm>

#include "switchyard/base/check.h"

namespace switchyard::formats {
namespace {

void check_lengths(ScaleLayout layout, ScaleGrid grid, std::size_t linear, std::size_t tiled) {
  require(grid.rows >= 0 && grid.cols >= 0, "scale grid of ", grid.rows, " x ", grid.cols,
          ": extents must not be negative; pass the matrix's rows and its blocks per row");
  require(std::int64_t(linear) == grid.rows * grid.cols, linear, " linear scales for a grid of ",
          grid.rows, " x ", grid.cols, "; pass exactly rows x cols bytes");
  require(std::int64_t(tiled) == padded_scale_bytes(layout, grid), tiled, " bytes of ",
          to_string(layout), " scales, but a grid of ", grid.rows, " x ", grid.cols, " takes ",
          padded_scale_bytes(layout, grid), " with its padding; size it by padded_scale_bytes()");
}

}  // namespace

std::string_view to_string(ScaleLayout layout) {
  constexpr std::string_view kNames[] = {"linear", "128x4", "8x4"};
  return kNames[int(layout)];
}

void scales_from_linear(ScaleLayout layout, ScaleGrid grid, std::span<const std::uint8_t> linear,
                        std::span<std::uint8_t> out) {
  check_lengths(layout, grid, linear.size(), out.size());
  std::fill(out.begin(), out.end(), std::uint8_t(0));
  for (std::int64_t r = 0, i = 0; r < grid.rows; ++r)
    for (std::int64_t c = 0; c < grid.cols; ++c, ++i)
      out[std::size_t(scale_offset(layout, grid, r, c))] = linear[std::size_t(i)];
}

void scales_to_linear(ScaleLayout layout, ScaleGrid grid, std::span<const std::uint8_t> in,
                      std::span<std::uint8_t> linear) {
  check_lengths(layout, grid, linear.size(), in.size());
  for (std::int64_t r = 0, i = 0; r < grid.rows; ++r)
    for (std::int64_t c = 0; c < grid.cols; ++c, ++i)
      linear[std::size_t(i)] = in[std::size_t(scale_offset(layout, grid, r, c))];
}

}  // namespace switchyard::formats
