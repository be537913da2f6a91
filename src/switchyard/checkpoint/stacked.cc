// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/stacked.h"

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/linear.h"

namespace switchyard::checkpoint {
namespace {

using T = TensorType;

/// One stacked tensor and the geometry of one expert in it.
struct Stack {
  const Tensor* tensor = nullptr;
  std::string name;
  std::int64_t expert_bytes = 0;
};

/// Every spelling of `names` ("a|b") with `suffix` behind it.
std::string with_suffix(std::string_view names, std::string_view suffix) {
  std::string out;
  for (std::string_view name : alternatives(names))
    out += cat(out.empty() ? "" : "|", name, suffix);
  return out;
}

/// Sizes that every helper needs.
struct Sizes {
  std::int64_t experts, hidden, inter, halves;  // halves: 2 with a gate, else 1
  std::int64_t outer() const { return halves * inter; }
};

Sizes sizes_of(const Problem& p) {
  return {p.num_experts(), p.expert_hidden(), p.inter, p.gated() ? 2 : 1};
}

Stack want_stack(BlockReader& reader, std::string_view names, const std::vector<T>& types,
                 std::vector<std::int64_t> shape) {
  Stack out;
  out.tensor = reader.want(names, {types, std::move(shape)}, &out.name);
  if (out.tensor) out.expert_bytes = std::int64_t(out.tensor->bytes.size()) / out.tensor->shape[0];
  return out;
}

/// Where one projection's [out, in] matrix lies in one expert's slab, in units.
struct Window {
  std::int64_t offset, row_stride, col_stride;
};

/// `half` 0 is gate, 1 is up; a family without gate has half 0 only.
Window up_window(StackedOrder order, const Sizes& s, std::int64_t half) {
  switch (order) {
    case StackedOrder::kRows:
      return {half * s.inter * s.hidden, s.hidden, 1};
    case StackedOrder::kColumns:
      return {half * s.inter, 1, s.outer()};
    case StackedOrder::kInterleavedColumns:
      return {half, s.halves, s.outer()};
  }
  throw InternalError("a stacked order has no window");
}

Window down_window(StackedOrder order, const Sizes& s) {
  return order == StackedOrder::kRows ? Window{0, s.inter, 1} : Window{0, 1, s.hidden};
}

Plane cut(const Stack& stack, std::int64_t expert, const Window& w, std::int64_t rows,
          std::int64_t cols) {
  Plane p = dense_plane(*stack.tensor, 0, rows, cols);
  p.base += expert * stack.expert_bytes + w.offset * p.unit_bytes;
  p.row_stride = w.row_stride * p.unit_bytes;
  p.col_stride = w.col_stride * p.unit_bytes;
  return p;
}

WeightSource plain_source(const Stack& stack, std::int64_t expert, const Window& w,
                          std::int64_t rows, std::int64_t cols) {
  WeightSource out;
  out.name = stack.name;
  out.layout = plain_layout(stack.tensor->type);
  out.rows = rows;
  out.cols = cols;
  out.codes = cut(stack, expert, w, rows, cols);
  return out;
}

std::vector<ExpertSources> find_plain(const BlockContext& c, const Sizes& s) {
  const std::vector<T> types = {T::kBf16, T::kF16, T::kF32};
  StackedOrder order = c.family.stacked_order;
  bool rows = order == StackedOrder::kRows;
  using Shape = std::vector<std::int64_t>;
  Shape up_shape =
      rows ? Shape{s.experts, s.outer(), s.hidden} : Shape{s.experts, s.hidden, s.outer()};
  Shape down_shape =
      rows ? Shape{s.experts, s.hidden, s.inter} : Shape{s.experts, s.inter, s.hidden};
  Stack up = want_stack(c.reader, c.family.stacked_up, types, std::move(up_shape));
  Stack down = want_stack(c.reader, c.family.stacked_down, types, std::move(down_shape));
  if (!up.tensor || !down.tensor) return {};
  std::vector<ExpertSources> out(std::size_t(s.experts));
  for (std::int64_t e = 0; e < s.experts; ++e) {
    ExpertSources& x = out[std::size_t(e)];
    if (s.halves == 2) x.gate = plain_source(up, e, up_window(order, s, 0), s.inter, s.hidden);
    x.up = plain_source(up, e, up_window(order, s, s.halves - 1), s.inter, s.hidden);
    x.down = plain_source(down, e, down_window(order, s), s.hidden, s.inter);
  }
  return out;
}

/// Codes and scales of one fp8 block matrix: rows [first_row, +rows) of an expert's slab.
WeightSource block_source(const Scheme& scheme, const Stack& codes, const Stack& scales,
                          std::int64_t expert, std::int64_t first_row, std::int64_t rows,
                          std::int64_t cols) {
  WeightSource out;
  out.name = codes.name;
  out.scale_name = scales.name;
  out.layout = scheme.layout;
  out.rows = rows;
  out.cols = cols;
  out.codes = cut(codes, expert, {first_row * cols, cols, 1}, rows, cols);
  std::int64_t grid_rows = out.layout.scale_rows(rows), grid_cols = out.layout.scale_cols(cols);
  std::int64_t grid_row = first_row / out.layout.block_rows;
  out.scales = cut(scales, expert, {grid_row * grid_cols, grid_cols, 1}, grid_rows, grid_cols);
  return out;
}

std::vector<ExpertSources> find_fp8_block(const BlockContext& c, const Scheme& scheme,
                                          const Sizes& s) {
  const formats::WeightLayout& l = scheme.layout;
  const std::vector<T> scale_types = {T::kF32, T::kBf16, T::kF16};
  Stack up =
      want_stack(c.reader, c.family.stacked_up, {T::kF8E4m3}, {s.experts, s.outer(), s.hidden});
  Stack up_scale = want_stack(c.reader, with_suffix(c.family.stacked_up, "_scale_inv"), scale_types,
                              {s.experts, l.scale_rows(s.outer()), l.scale_cols(s.hidden)});
  Stack down =
      want_stack(c.reader, c.family.stacked_down, {T::kF8E4m3}, {s.experts, s.hidden, s.inter});
  Stack down_scale =
      want_stack(c.reader, with_suffix(c.family.stacked_down, "_scale_inv"), scale_types,
                 {s.experts, l.scale_rows(s.hidden), l.scale_cols(s.inter)});
  if (!up.tensor || !up_scale.tensor || !down.tensor || !down_scale.tensor) return {};
  if (s.halves == 2 && s.inter % l.block_rows != 0) {
    c.reader.fault(FindingKind::kContradiction, up.name,
                   cat("tensor '", up.name, "' stacks gate and up of width ", s.inter,
                       ", which is no multiple of the scale block's ", l.block_rows,
                       ", so that one block holds rows of both; store the experts separately"));
    return {};
  }
  std::vector<ExpertSources> out(std::size_t(s.experts));
  for (std::int64_t e = 0; e < s.experts; ++e) {
    ExpertSources& x = out[std::size_t(e)];
    if (s.halves == 2) x.gate = block_source(scheme, up, up_scale, e, 0, s.inter, s.hidden);
    x.up = block_source(scheme, up, up_scale, e, (s.halves - 1) * s.inter, s.inter, s.hidden);
    x.down = block_source(scheme, down, down_scale, e, 0, s.hidden, s.inter);
  }
  return out;
}

/// One mxfp4 matrix: every `step`-th row of an expert's slab from `first` on.
WeightSource mxfp4_source(const Scheme& scheme, const Stack& blocks, const Stack& scales,
                          std::int64_t expert, std::int64_t first, std::int64_t step,
                          std::int64_t rows, std::int64_t cols) {
  WeightSource out;
  out.name = blocks.name;
  out.scale_name = scales.name;
  out.layout = scheme.layout;
  out.rows = rows;
  out.cols = cols;
  out.codes = cut(blocks, expert, {first * (cols / 2), step * (cols / 2), 1}, rows, cols / 2);
  out.scales = cut(scales, expert, {first * (cols / 32), step * (cols / 32), 1}, rows, cols / 32);
  out.scales.type = T::kF8E8m0;
  return out;
}

std::vector<ExpertSources> find_mxfp4(const BlockContext& c, const Scheme& scheme, const Sizes& s) {
  const std::vector<T> scale_types = {T::kU8, T::kF8E8m0};
  if (s.hidden % 32 != 0 || s.inter % 32 != 0) {
    c.reader.fault(
        FindingKind::kContradiction, c.reader.block(),
        cat("block '", c.reader.block(), "' is declared mxfp4 with widths ", s.hidden, " and ",
            s.inter,
            ", which must be multiples of 32 in *_blocks tensors; config.json is another model's"));
    return {};
  }
  std::string_view up_name = c.family.stacked_up, down_name = c.family.stacked_down;
  Stack up = want_stack(c.reader, with_suffix(up_name, "_blocks"), {T::kU8},
                        {s.experts, s.outer(), s.hidden / 32, 16});
  Stack up_scale = want_stack(c.reader, with_suffix(up_name, "_scales"), scale_types,
                              {s.experts, s.outer(), s.hidden / 32});
  Stack down = want_stack(c.reader, with_suffix(down_name, "_blocks"), {T::kU8},
                          {s.experts, s.hidden, s.inter / 32, 16});
  Stack down_scale = want_stack(c.reader, with_suffix(down_name, "_scales"), scale_types,
                                {s.experts, s.hidden, s.inter / 32});
  if (!up.tensor || !up_scale.tensor || !down.tensor || !down_scale.tensor) return {};
  std::vector<ExpertSources> out(std::size_t(s.experts));
  for (std::int64_t e = 0; e < s.experts; ++e) {
    ExpertSources& x = out[std::size_t(e)];
    x.gate = mxfp4_source(scheme, up, up_scale, e, 0, 2, s.inter, s.hidden);
    x.up = mxfp4_source(scheme, up, up_scale, e, 1, 2, s.inter, s.hidden);
    x.down = mxfp4_source(scheme, down, down_scale, e, 0, 1, s.hidden, s.inter);
  }
  return out;
}

BiasSource bias_of(const Stack& stack, std::int64_t expert, std::int64_t first, std::int64_t step,
                   std::int64_t count) {
  std::int64_t unit = bits_of(stack.tensor->type) / 8;
  return {stack.tensor->bytes.data() + expert * stack.expert_bytes + first * unit,
          stack.tensor->type, count, step};
}

void add_biases(const BlockContext& c, const Sizes& s, std::vector<ExpertSources>& experts) {
  const std::vector<T> types = {T::kF32, T::kBf16, T::kF16};
  Stack up = want_stack(c.reader, with_suffix(c.family.stacked_up, "_bias"), types,
                        {s.experts, s.outer()});
  Stack down = want_stack(c.reader, with_suffix(c.family.stacked_down, "_bias"), types,
                          {s.experts, s.hidden});
  if (!up.tensor || !down.tensor) return;
  // Biases follow the even/odd rule of the columns, in the mxfp4 spelling too.
  bool interleaved = c.family.stacked_order == StackedOrder::kInterleavedColumns;
  std::int64_t step = interleaved ? s.halves : 1, second = interleaved ? 1 : s.inter;
  for (std::int64_t e = 0; e < std::int64_t(experts.size()); ++e) {
    ExpertSources& x = experts[std::size_t(e)];
    if (s.halves == 2) x.gate_bias = bias_of(up, e, 0, step, s.inter);
    x.up_bias = bias_of(up, e, (s.halves - 1) * second, step, s.inter);
    x.down_bias = bias_of(down, e, 0, 1, s.hidden);
  }
}

/// Both sides of the block must have `scheme`.
void check_uniform(const BlockContext& c, const Scheme& scheme) {
  std::string_view name = alternatives(c.family.stacked_down).front();
  if (name.ends_with(".weight")) name.remove_suffix(7);
  std::string module = cat(c.reader.block(), ".", name);
  Scheme own = c.quantization.scheme_of(module);
  if (own == scheme) return;
  c.reader.fault(
      FindingKind::kContradiction, module,
      cat("module '", module, "' is declared ", own.format, " and its neighbour ", scheme.format,
          "; the routed experts of one layer must share a format, change the exclude list"));
}

bool scales_are_good(BlockReader& reader, const std::vector<ExpertSources>& experts) {
  bool good = true;
  for (const ExpertSources& e : experts) {
    good = (!e.gate || check_scales(reader, *e.gate)) && good;
    good = check_scales(reader, e.up) && good;
    good = check_scales(reader, e.down) && good;
  }
  return good;
}

}  // namespace

std::vector<ExpertSources> find_stacked(const BlockContext& c, const Scheme& scheme) {
  Sizes s = sizes_of(c.problem);
  check_uniform(c, scheme);
  std::vector<ExpertSources> out;
  bool rows = c.family.stacked_order == StackedOrder::kRows;
  if (scheme.kind == SchemeKind::kNone) {
    out = find_plain(c, s);
  } else if (scheme.kind == SchemeKind::kMxfp4 && c.family.mxfp4_blocks) {
    out = find_mxfp4(c, scheme, s);
  } else if (scheme.kind == SchemeKind::kFp8Block && rows) {
    out = find_fp8_block(c, scheme, s);
  } else {
    c.reader.fault(
        FindingKind::kContradiction, c.reader.block(),
        cat("block '", c.reader.block(), "' stacks its experts in one tensor and is declared ",
            scheme.format, ", a spelling that is not served for family ",
            alternatives(c.family.model_types).front(), "; store one tensor per expert"));
    return {};
  }
  if (c.problem.expert_bias) add_biases(c, s, out);
  if (!scales_are_good(c.reader, out)) out.clear();
  return out;
}

}  // namespace switchyard::checkpoint
