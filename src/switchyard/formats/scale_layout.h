// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "switchyard/base/host_device.h"

namespace switchyard::formats {

/// How a matrix's byte scales lie in memory; ours are linear, the others are what GPU kernels and
/// exchanged tensors use.
enum class ScaleLayout : std::uint8_t {
  kLinear,  // row-major, no padding
  k128x4,   // tiles of 128 rows x 4 columns, interleaved by 32 rows
  k8x4      // tiles of 8 rows x 4 columns
};

/// "linear", "128x4" or "8x4".
std::string_view to_string(ScaleLayout layout);

/// Rows of a tile: 1, 128 or 8.
SWITCHYARD_HD constexpr std::int64_t scale_tile_rows(ScaleLayout layout) {
  return layout == ScaleLayout::k128x4 ? 128 : layout == ScaleLayout::k8x4 ? 8 : 1;
}
/// Columns of a tile: 1, 4 or 4.
SWITCHYARD_HD constexpr std::int64_t scale_tile_cols(ScaleLayout layout) {
  return layout == ScaleLayout::kLinear ? 1 : 4;
}

/// Valid extents of a grid of scales: rows of the matrix by blocks along its columns.
struct ScaleGrid {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// Bytes of one grid, padding to whole tiles included. Batches (experts) lie one after another,
/// each padded on its own.
SWITCHYARD_HD constexpr std::int64_t padded_scale_bytes(ScaleLayout layout, ScaleGrid grid) {
  std::int64_t tile_rows = scale_tile_rows(layout), tile_cols = scale_tile_cols(layout);
  return (grid.rows + tile_rows - 1) / tile_rows * tile_rows *
         ((grid.cols + tile_cols - 1) / tile_cols * tile_cols);
}

/// Offset in bytes of the scale at (row, col); rows and columns of the padding are legal too.
SWITCHYARD_HD constexpr std::int64_t scale_offset(ScaleLayout layout, ScaleGrid grid,
                                                  std::int64_t row, std::int64_t col) {
  std::int64_t tiles_per_row = (grid.cols + 3) / 4;
  if (layout == ScaleLayout::k128x4)
    return (row / 128 * tiles_per_row + col / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 +
           col % 4;
  if (layout == ScaleLayout::k8x4)
    return (row / 8 * tiles_per_row + col / 4) * 32 + row % 8 * 4 + col % 4;
  return row * grid.cols + col;
}

/// Rearranges linear scales into `layout`; the padding becomes 0.
///
/// Shapes:  linear [rows * cols]; out [padded_scale_bytes()]; no overlap.
/// Errors:  UsageError for other lengths.
void scales_from_linear(ScaleLayout layout, ScaleGrid grid, std::span<const std::uint8_t> linear,
                        std::span<std::uint8_t> out);

/// The way back; the padding is not read.
///
/// Shapes:  in [padded_scale_bytes()]; linear [rows * cols]; no overlap.
/// Errors:  UsageError for other lengths.
void scales_to_linear(ScaleLayout layout, ScaleGrid grid, std::span<const std::uint8_t> in,
                      std::span<std::uint8_t> linear);

}  // namespace switchyard::formats
