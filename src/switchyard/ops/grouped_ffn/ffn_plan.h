// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "switchyard/base/arena.h"
#include "switchyard/ops/grouped_ffn/grouped_ffn.h"
#include "switchyard/ops/grouped_gemm/panel_fixed.h"

namespace switchyard::ops {

/// The most panels of a task.
inline constexpr std::int64_t kMostFc1Panels = 16, kMostFc2Panels = 8;
/// The scratch's bounds: a FC2 task's panels times the call's rows (where it has more than one
/// panel), and a FC1 task's panels times its rows.
inline constexpr std::int64_t kMostFc2Values = 65536, kMostFc1Values = 1024;

/// The widest FC2 task of a call of `rows` rows: a power of two.
std::int64_t most_fc2_panels(std::int64_t rows);

/// Panels of one or several matrices of `panels` each, cut into tasks of `chunk` panels; the last
/// chunks, one per thread, are cut in `cuts`, so that no thread waits long for another's last task.
struct PanelTasks {
  std::int64_t panels = 0, chunk = 1, matrices = 1, threads = 1, cuts = 4;

  std::int64_t chunks() const { return (panels + chunk - 1) / chunk; }  // of one matrix
  std::int64_t whole() const { return std::max<std::int64_t>(0, matrices * chunks() - threads); }
  std::int64_t count() const { return whole() + (matrices * chunks() - whole()) * cuts; }

  /// A task's matrix and its panels, of which there may be none.
  struct Range {
    std::int64_t matrix, begin, end;
  };
  Range range(std::int64_t task) const {
    const std::int64_t pieces = task < whole() ? 1 : cuts;
    const std::int64_t cut = task < whole() ? 0 : (task - whole()) % pieces;
    const std::int64_t at = task < whole() ? task : whole() + (task - whole()) / pieces;
    const std::int64_t width = (chunk + pieces - 1) / pieces, begin = at % chunks() * chunk;
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
  bool fixed = false;  // pairs are kept in the fixed form too, which the tier's twin reads
  CpuIsa isa = CpuIsa::kPortable;
};

/// Sizes for `tokens` tokens on a machine of tier `isa`.
FfnSizes ffn_sizes(const FfnShape& shape, std::int64_t tokens, CpuIsa isa);

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

  PanelInput input() const;
};

/// Every part of a forward's workspace.
struct FfnBuffers {
  std::span<std::int64_t> offsets;      // [experts + 1] sorted rows of each expert
  std::span<std::int32_t> active;       // experts with rows, most rows first
  std::span<std::int32_t> sorted_row;   // [rows] (token, choice) of a sorted row
  std::span<std::int32_t> open_panels;  // [experts] of FC1, not computed yet
  std::span<std::int32_t> input_row;    // [rows] row of x_quant that a sorted row reads
  std::span<std::int32_t> sorted_of;    // [rows] sorted row of (token, choice), or -1
  QuantizedRows x, inter_quant;
  std::span<float> inter;        // [rows, padded inter], sorted order
  std::span<float> stage;        // [threads] one fp32 row for conversions
  std::span<float> tiles;        // [threads] gate and up tiles
  std::span<float> fc2;          // [threads][rows, columns of a task]
  std::span<std::byte> scratch;  // [threads] what the panel twin keeps
  std::int64_t stage_stride = 0, tile_stride = 0, fc2_stride = 0, scratch_stride = 0;
};

/// Lays the parts out in `arena`, with room for every tactic; a measuring arena only counts.
FfnBuffers take_buffers(Arena& arena, const FfnShape& shape, const ExpertLayout& layout,
                        const FfnSizes& sizes, int threads);

/// Sorts the (token, choice) rows by expert, stable; skipped and zero-expert choices are left out.
/// Returns the number of active experts.
std::int64_t sort_rows(const FfnArgs& args, FfnBuffers& buffers);

}  // namespace switchyard::ops
