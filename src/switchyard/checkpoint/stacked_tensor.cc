// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/stacked_tensor.h"

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/config.h"
#include "switchyard/checkpoint/linear.h"

namespace switchyard::checkpoint {
namespace {

using T = TensorType;
using Shape = std::vector<std::int64_t>;

bool is_column_major(Placement p) {
  return p == Placement::kColumns || p == Placement::kInterleavedColumns;
}

/// The stored shape when each logical matrix has `rows` x `cols` units.
Shape stored_shape(const StackedSide& s, std::int64_t rows, std::int64_t cols) {
  Shape out = {s.halves * rows, cols};
  if (is_column_major(s.place)) std::swap(out[0], out[1]);
  if (s.flat)
    out[0] *= s.experts;
  else
    out.insert(out.begin(), s.experts);
  return out;
}

/// A scalar for all experts, or one for each.
Shape scalar_shape(const Tensor* stored, std::int64_t experts) {
  if (!stored || stored->shape.empty()) return {};
  return {stored->shape[0] == experts ? experts : 1};
}

}  // namespace

std::string with_suffix(std::string_view names, std::string_view suffix) {
  std::string out;
  for (std::string_view name : alternatives(names))
    out += cat(out.empty() ? "" : "|", name, suffix);
  return out;
}

Plane StackedTensor::cut(const Part& part, std::int64_t expert) const {
  Plane p = dense_plane(*part.tensor, 0, part.rows, part.cols);
  const std::int64_t all = side_.halves * part.rows;
  std::int64_t offset = 0, row = part.cols, col = 1;
  switch (side_.place) {
    case Placement::kRows:
      offset = side_.half * part.rows * part.cols;
      break;
    case Placement::kColumns:
      offset = side_.half * part.rows, row = 1, col = all;
      break;
    case Placement::kInterleavedRows:
      offset = side_.half * part.cols, row = side_.halves * part.cols;
      break;
    case Placement::kInterleavedColumns:
      offset = side_.half, row = side_.halves, col = all;
      break;
  }
  p.base += (expert * all * part.cols + offset) * p.unit_bytes;
  p.row_stride = row * p.unit_bytes;
  p.col_stride = col * p.unit_bytes;
  return p;
}

float StackedTensor::scalar(const Part& part, std::int64_t expert) const {
  std::int64_t at = part.tensor->elements() == 1 ? 0 : expert;
  return multiplying(load_float(part.tensor->type, part.tensor->bytes.data(), at), scheme_);
}

WeightSource StackedTensor::expert(std::int64_t e) const {
  WeightSource out;
  out.name = codes_.name;
  out.scale_name = scales_.name;
  out.global_name = global_.name;
  out.input_name = input_.name;
  out.layout = layout_;
  out.rows = side_.rows;
  out.cols = side_.cols;
  out.codes = cut(codes_, e);
  if (scheme_.kind == SchemeKind::kFp8Tensor) {
    out.scales = dense_plane(*scales_.tensor, 0, 1, 1);
    if (scales_.tensor->elements() > 1) out.scales.base += e * out.scales.unit_bytes;
  } else if (scales_.tensor) {
    out.scales = as_scales(cut(scales_, e), scheme_);
  }
  if (global_.tensor) out.global_scale = scalar(global_, e);
  if (input_.tensor) out.input_scale = scalar(input_, e);
  return out;
}

/// Looks for a side's tensors one after the other, so that every fault is noted.
class StackFinder {
 public:
  StackFinder(BlockReader& reader, const StackedSide& side, const Scheme& scheme)
      : reader_(reader) {
    out_.side_ = side;
    out_.scheme_ = scheme;
    out_.layout_ = scheme.layout;
  }

  std::optional<StackedTensor> run() {
    if (!width_fits()) return {};
    const SchemeNames& names = scheme().names;
    codes();
    if (scheme().kind == SchemeKind::kFp8Tensor) {
      scalar(spelt("_weight_scale", names.scale), float_types(), out_.scales_);
    } else if (scheme().kind != SchemeKind::kNone) {
      block_scales();
    }
    if (scheme().layout.global_scale)
      scalar(spelt("_weight_scale_2", names.global), {T::kF32}, out_.global_);
    if (scheme().needs_input_scale())
      scalar(spelt("_input_scale", names.input), {T::kF32}, out_.input_);
    if (!good_ || !halves_are_apart()) return {};
    return std::move(out_);
  }

 private:
  using Part = StackedTensor::Part;
  const Scheme& scheme() const { return out_.scheme_; }
  const StackedSide& side() const { return out_.side_; }
  bool is_blocks() const { return scheme().kind == SchemeKind::kMxfp4Blocks; }
  bool is_e2m1() const { return scheme().layout.element == formats::Element::kE2m1; }

  /// The side's names of one tensor: a parameter "x" has its scales in "x<suffix>", a module's
  /// "m.weight" in "m.<name>", as every linear layer has.
  std::string spelt(std::string_view suffix, std::string_view module_names) const {
    constexpr std::string_view kWeight = ".weight";
    std::string out;
    for (std::string_view name : alternatives(side().names)) {
      if (!name.ends_with(kWeight)) {
        out += cat(out.empty() ? "" : "|", name, suffix);
        continue;
      }
      const std::string_view module = name.substr(0, name.size() - kWeight.size());
      for (std::string_view own : alternatives(module_names))
        out += cat(out.empty() ? "" : "|", module, ".", own);
    }
    return out;
  }

  void want(const std::string& names, std::vector<T> types, Shape shape, Part& part) {
    part.tensor = reader_.want(names, {std::move(types), std::move(shape)}, &part.name);
    good_ = good_ && part.tensor != nullptr;
  }

  void scalar(const std::string& names, std::vector<T> types, Part& part) {
    const Tensor* stored = reader_.peek(names);
    want(names, std::move(types), scalar_shape(stored, side().experts), part);
  }

  bool width_fits() {
    const std::int64_t multiple = is_blocks() ? 32 : is_e2m1() ? 2 : 1;
    if (side().cols % multiple == 0) return true;
    reader_.fault(FindingKind::kContradiction, reader_.block(),
                  cat("block '", reader_.block(), "' is declared ", scheme().format,
                      " with a width of ", side().cols, ", which must be a multiple of ", multiple,
                      " in tensors that stack experts; config.json is another model's"));
    return false;
  }

  void codes() {
    Part& part = out_.codes_;
    part.rows = side().rows;
    part.cols = is_e2m1() ? side().cols / 2 : side().cols;
    Shape shape = stored_shape(side(), part.rows, part.cols);
    if (is_blocks()) shape.back() /= 16, shape.push_back(16);
    want(spelt(is_blocks() ? "_blocks" : "", scheme().names.codes), code_types(scheme()),
         std::move(shape), part);
    if (part.tensor && scheme().kind == SchemeKind::kNone)
      out_.layout_ = plain_layout(part.tensor->type);
  }

  void block_scales() {
    const formats::WeightLayout& l = scheme().layout;
    Part& part = out_.scales_;
    part.rows = l.scale_rows(side().rows);
    part.cols = l.scale_cols(side().cols);
    Shape grid = stored_shape(side(), part.rows, part.cols);
    const bool fp8 = scheme().kind == SchemeKind::kFp8Block;
    // A block that holds rows of both halves stands once in the file; halves_are_apart refuses it.
    if (fp8) grid[grid.size() - 2] = l.scale_rows(side().halves * side().rows);
    const char* suffix = is_blocks() ? "_scales" : fp8 ? "_scale_inv" : "_weight_scale";
    const std::string names = spelt(suffix, scheme().names.scale);
    // One scale per row stands as [rows] too, as in any linear layer.
    const Tensor* stored = reader_.peek(names);
    const bool channel = scheme().kind == SchemeKind::kFp8Channel;
    if (channel && stored && stored->shape.size() + 1 == grid.size()) grid.pop_back();
    want(names, scale_types(scheme()), std::move(grid), part);
  }

  bool halves_are_apart() {
    const std::int64_t block = scheme().layout.block_rows;
    if (side().halves == 1 || block <= 1 || side().rows % block == 0) return true;
    const std::string& name = out_.codes_.name;
    reader_.fault(FindingKind::kContradiction, name,
                  cat("tensor '", name, "' stacks gate and up of width ", side().rows,
                      ", which is no multiple of the scale block's ", block,
                      ", so that one block holds rows of both; store the experts separately"));
    return false;
  }

  BlockReader& reader_;
  StackedTensor out_;
  bool good_ = true;
};

std::optional<StackedTensor> find_stack(BlockReader& reader, const StackedSide& side,
                                        const Scheme& scheme) {
  return StackFinder(reader, side, scheme).run();
}

}  // namespace switchyard::checkpoint
