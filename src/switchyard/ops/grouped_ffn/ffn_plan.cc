// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/ffn_plan.h"

#include <algorithm>

#include "switchyard/base/check.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

/// `rows` quantised rows that the GEMM with weights in `layout` reads.
QuantizedRows take_quantized(Arena& arena, const FfnShape& shape, const FfnSizes& s,
                             std::int64_t rows, const PanelLayout& layout) {
  const std::int64_t cols = layout.cols, padded_cols = layout.padded_cols();
  QuantizedRows q;
  q.stride = padded_cols;
  if (s.floats) {
    q.floats = arena.take<float>(std::size_t(rows * padded_cols));
  } else {
    q.pairs = arena.take<std::uint16_t>(std::size_t(rows * padded_cols));
  }
  if (s.block_scales) {
    q.scale_stride = (cols + 127) / 128;
    q.block_scales = arena.take<float>(std::size_t(rows * q.scale_stride));
  }
  q.row_scales = arena.take<float>(std::size_t(rows));
  if (s.fixed) {
    q.form = fixed_form(layout, shape.quant);
    q.fixed_stride = q.form.row_bytes(padded_cols);
    q.fixed = arena.take<std::byte>(std::size_t(rows * q.fixed_stride));
  }
  return q;
}

}  // namespace

PanelInput QuantizedRows::input() const {
  return {.pairs = floats.empty() ? pairs.data() : nullptr,
          .floats = floats.empty() ? nullptr : floats.data(),
          .stride = stride,
          .block_scales = block_scales.empty() ? nullptr : block_scales.data(),
          .scale_stride = scale_stride,
          .row_scales = row_scales.data(),
          .fixed = fixed.empty() ? nullptr : fixed.data(),
          .fixed_stride = fixed_stride,
          .digits = form.digits};
}

FfnSizes ffn_sizes(const FfnShape& shape, std::int64_t tokens, CpuIsa isa) {
  FfnSizes s;
  s.isa = isa;
  s.rows = tokens * shape.top_k;
  s.x_rows = shape.weight_on_input ? s.rows : tokens;
  s.floats = shape.quant == ActivationQuant::kF32 ||
             (shape.quant == ActivationQuant::kNone && shape.dtype != Dtype::kBf16) ||
             shape.weights.element == formats::Element::kFp16;
  s.block_scales = shape.quant == ActivationQuant::kFp8Block128 ||
                   shape.quant == ActivationQuant::kFp8Block128Ue8m0;
  s.fixed = !s.floats && shape.weights.element == formats::Element::kE2m1 &&
            panel_twin(isa).fix_row != nullptr;
  return s;
}

FfnBuffers take_buffers(Arena& arena, const FfnShape& shape, const ExpertLayout& l,
                        const FfnSizes& s, int threads) {
  FfnBuffers b;
  const std::size_t rows = std::size_t(s.rows);
  b.offsets = arena.take<std::int64_t>(std::size_t(shape.experts) + 1);
  b.active = arena.take<std::int32_t>(std::size_t(shape.experts));
  b.sorted_row = arena.take<std::int32_t>(rows);
  b.open_panels = arena.take<std::int32_t>(std::size_t(shape.experts));
  b.input_row = arena.take<std::int32_t>(rows);
  b.sorted_of = arena.take<std::int32_t>(rows);
  b.x = take_quantized(arena, shape, s, s.x_rows, l.fc1);
  b.inter = arena.take<float>(rows * std::size_t(l.fc1.panels() * kPanelRows));
  b.inter_quant = take_quantized(arena, shape, s, s.rows, l.fc2);
  b.stage_stride = (std::max(shape.hidden, shape.inter) + 15) / 16 * 16;
  b.stage = arena.take<float>(std::size_t(threads * b.stage_stride));
  b.tile_stride = 2 * kMostFc1Values * kPanelRows;
  b.tiles = arena.take<float>(std::size_t(threads * b.tile_stride));
  b.fc2_stride = s.rows * most_fc2_panels(s.rows) * kPanelRows;
  b.fc2 = arena.take<float>(std::size_t(threads * b.fc2_stride));
  if (!s.floats)
    b.scratch_stride = std::int64_t(
        std::max(panel_scratch_bytes(l.fc1, s.isa), panel_scratch_bytes(l.fc2, s.isa)));
  b.scratch = arena.take<std::byte>(std::size_t(threads * b.scratch_stride));
  return b;
}

std::int64_t sort_rows(const FfnArgs& a, FfnBuffers& b) {
  const std::int64_t experts = a.shape->experts, rows = a.tokens * a.shape->top_k;
  // A zero expert returns the token itself, which codes do not hold.
  const std::int64_t ids = experts + (a.x_rows.quantised ? 0 : a.shape->zero_experts);
  std::fill(b.offsets.begin(), b.offsets.end(), 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int32_t id = a.ids[i];
    require(id >= -1 && id < ids, "expert id ", id, " of token ", i / a.shape->top_k, ", choice ",
            i % a.shape->top_k, " is outside -1..", ids - 1, "; -1 skips a choice");
    if (id >= 0 && id < experts) ++b.offsets[std::size_t(id) + 1];
  }
  std::int64_t active = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (b.offsets[std::size_t(e) + 1] > 0) b.active[std::size_t(active++)] = std::int32_t(e);
    b.offsets[std::size_t(e) + 1] += b.offsets[std::size_t(e)];
  }
  for (std::int64_t i = 0; i < rows;
       ++i) {  // offsets[e] runs to the expert's end, then is restored
    const std::int32_t id = a.ids[i];
    b.sorted_of[std::size_t(i)] = -1;
    if (id < 0 || id >= experts) continue;
    const std::size_t at = std::size_t(b.offsets[std::size_t(id)]++);
    b.sorted_of[std::size_t(i)] = std::int32_t(at);
    b.sorted_row[at] = std::int32_t(i);
    b.input_row[at] = std::int32_t(a.shape->weight_on_input ? i : i / a.shape->top_k);
  }
  for (std::int64_t e = experts; e > 0; --e)
    b.offsets[std::size_t(e)] = b.offsets[std::size_t(e) - 1];
  b.offsets[0] = 0;
  auto count = [&](std::int32_t e) {
    return b.offsets[std::size_t(e) + 1] - b.offsets[std::size_t(e)];
  };
  std::sort(b.active.begin(), b.active.begin() + active, [&](std::int32_t l, std::int32_t r) {
    return count(l) != count(r) ? count(l) > count(r) : l < r;
  });
  return active;
}

}  // namespace switchyard::ops
