// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "switchyard/base/arena.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

namespace switchyard::ops {

/// Above so many rows a chunk of output panels narrows: FC1's of 4-bit weights from 16 panels to 8,
/// FC2's from 8 to 4, then to 1. That bounds the scratch and changes no bit.
inline constexpr std::int64_t kLongFc1Rows = 128, kLongChunkRows = 1024, kWideChunkRows = 16384;

/// Panels of one or several matrices of `panels` each, cut into tasks of `chunk` panels; the last
/// chunks, one per thread, are cut in four, so that no thread waits long for another's last task.
struct PanelTasks {
  /// Pieces of one of the last chunks.
  static constexpr std::int64_t kCuts = 4;
  std::int64_t panels = 0, chunk = 1, matrices = 1, threads = 1;

  std::int64_t chunks() const { return (panels + chunk - 1) / chunk; }  // of one matrix
  std::int64_t whole() const { return std::max<std::int64_t>(0, matrices * chunks() - threads); }
  std::int64_t count() const { return whole() + (matrices * chunks() - whole()) * kCuts; }

  /// A task's matrix and its panels, of which there may be none.
  struct Range {
    std::int64_t matrix, begin, end;
  };
  Range range(std::int64_t task) const {
    const std::int64_t cuts = task < whole() ? 1 : kCuts;
    const std::int64_t cut = task < whole() ? 0 : (task - whole()) % kCuts;
    const std::int64_t at = task < whole() ? task : whole() + (task - whole()) / kCuts;
    const std::int64_t width = (chunk + cuts - 1) / cuts, begin = at % chunks() * chunk;
    const std::int64_t end = std::min(begin + chunk, panels);
    return {at / chunks(), std::min(begin + cut * width, end),
            std::min(begin + (cut + 1) * width, end)};
  }
};

/// Sizes that a forward derives from its shape; the size query and the run read the same ones.
struct FfnSizes {
  std::int64_t rows = 0;    // tokens * top_k
  std::int64_t x_rows = 0;  // quantised inputs: tokens, or rows when weights multiply the input
  bool floats = false;      // GEMM inputs are fp32 rather than bf16 pairs
  bool block_scales = false;
  bool fixed = false;          // pairs are kept in the fixed form too, for the twins that read it
  std::int64_t fc1_chunk = 8;  // panels per task
  std::int64_t fc2_chunk = 4;  // 8 at most
  /// Rows per FC1 tile buffer.
  static constexpr std::int64_t kRowBlock = 64;
};

/// Sizes for `tokens` tokens and a pool of `threads`.
FfnSizes ffn_sizes(const FfnShape& shape, std::int64_t tokens, int threads);

/// Quantised rows in the workspace.
struct QuantizedRows {
  std::span<std::uint16_t> pairs;
  std::span<float> floats;
  std::span<float> block_scales;
  std::span<float> row_scales;
  std::span<std::byte> fixed;
  std::int64_t stride = 0;
  std::int64_t scale_stride = 0;
  std::int64_t fixed_stride = 0;
  FixedForm form;

  /// With the fixed form where `use_fixed`, that is, where it was written.
  PanelInput input(bool use_fixed) const;
};

/// Every part of a forward's workspace.
struct FfnBuffers {
  std::span<std::int64_t> offsets;     // [experts + 1] sorted rows of each expert
  std::span<std::int32_t> active;      // experts with rows, most rows first
  std::span<std::int32_t> sorted_row;  // [rows] (token, choice) of a sorted row
  std::span<std::int32_t> row_expert;  // [rows] expert of a sorted row
  std::span<std::int32_t> input_row;   // [rows] row of x_quant that a sorted row reads
  std::span<std::int32_t> sorted_of;   // [rows] sorted row of (token, choice), or -1
  QuantizedRows x, inter_quant;
  std::span<float> inter;  // [rows, padded inter], sorted order
  std::span<float> stage;  // [threads] one fp32 row for conversions
  std::span<float> tiles;  // [threads] gate and up tiles
  std::span<float> fc2;    // [threads][rows, chunk]
  std::int64_t stage_stride = 0, tile_stride = 0, fc2_stride = 0;
};

/// Lays the parts out in `arena`; with a measuring arena it only counts.
FfnBuffers take_buffers(Arena& arena, const FfnShape& shape, const ExpertLayout& layout,
                        const FfnSizes& sizes, int threads);

/// Sorts the (token, choice) rows by expert, stable; skipped and zero-expert choices are left out.
/// Returns the number of active experts.
std::int64_t sort_rows(const FfnArgs& args, FfnBuffers& buffers);

}  // namespace switchyard::ops
