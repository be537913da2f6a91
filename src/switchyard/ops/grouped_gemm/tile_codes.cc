// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "switchyard/base/check.h"
#include "switchyard/ops/grouped_gemm/tile.h"

namespace switchyard::ops {
namespace {

using formats::Element;
using formats::ScaleType;

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

/// The code, or nothing where no tile holds such weights.
std::optional<TileCode> code_of(const formats::WeightLayout& l, std::int64_t cols,
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
  return {};
}

}  // namespace

bool has_tiles(const formats::WeightLayout& l, std::int64_t cols, formats::ActivationQuant inputs) {
  return code_of(l, cols, inputs).has_value();
}

TileCode tile_code(const formats::WeightLayout& l, std::int64_t cols,
                   formats::ActivationQuant inputs) {
  if (const std::optional<TileCode> code = code_of(l, cols, inputs)) return *code;
  throw UsageError(
      cat("cuda: weights of ", to_string(l.element), " with ", to_string(l.scale), " scales per ",
          l.block_rows, "x", l.block_cols,
          has_block_scales(inputs) ? " and activations with scales per 128" : "",
          " have no tiles in this version; convert them to another format, or use the cpu leaf"));
}

}  // namespace switchyard::ops
