// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/linear.h"

#include <cmath>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/config.h"
#include "switchyard/formats/static_scale.h"

namespace switchyard::checkpoint {
namespace {

using T = TensorType;

/// "base.a|base.b" of "a|b".
std::string below(const std::string& base, std::string_view names) {
  std::string out;
  for (std::string_view name : alternatives(names))
    out += cat(out.empty() ? "" : "|", base, ".", name);
  return out;
}

bool is_e2m1(const Scheme& scheme) { return scheme.layout.element == formats::Element::kE2m1; }

bool find_codes(BlockReader& reader, const LinearArgs& a, WeightSource& w) {
  std::string names = below(a.base, a.scheme->names.codes);
  const Tensor* stored = reader.peek(names);
  bool bytes = is_e2m1(*a.scheme) && !(stored && stored->type == T::kF4);
  std::int64_t cols = bytes ? w.cols / 2 : w.cols;
  const Tensor* t = reader.want(names, {code_types(*a.scheme), {w.rows, cols}}, &w.name);
  if (t && is_e2m1(*a.scheme) && w.cols % 2 != 0) {
    reader.fault(FindingKind::kMisshaped, w.name,
                 cat("tensor '", w.name, "' has ", w.cols,
                     " columns of 4-bit codes, must be even (two share a byte); the checkpoint is "
                     "not NVFP4 or MXFP4"));
    return false;
  }
  if (!t) return false;
  if (a.scheme->kind == SchemeKind::kNone) w.layout = plain_layout(t->type);
  w.codes = dense_plane(*t, 0, w.rows, is_e2m1(*a.scheme) ? w.cols / 2 : w.cols);
  return true;
}

/// One fp32 scale for the whole matrix.
bool find_one_scale(BlockReader& reader, const LinearArgs& a, WeightSource& w) {
  std::string names = below(a.base, a.scheme->names.scale);
  if (!reader.want_scalar(names)) return false;
  w.scales = dense_plane(*reader.peek(names, &w.scale_name), 0, 1, 1);
  return true;
}

bool find_block_scales(BlockReader& reader, const LinearArgs& a, WeightSource& w) {
  std::string names = below(a.base, a.scheme->names.scale);
  std::int64_t rows = w.layout.scale_rows(w.rows), cols = w.layout.scale_cols(w.cols);
  std::vector<std::int64_t> shape = {rows, cols};
  const Tensor* stored = reader.peek(names);
  if (a.scheme->kind == SchemeKind::kFp8Channel && stored && stored->shape.size() == 1)
    shape = {rows};
  const Tensor* t = reader.want(names, {scale_types(*a.scheme), std::move(shape)}, &w.scale_name);
  if (t) w.scales = as_scales(dense_plane(*t, 0, rows, cols), *a.scheme);
  return t != nullptr;
}

bool find_global(BlockReader& reader, const LinearArgs& a, WeightSource& w) {
  if (!w.layout.global_scale) return true;
  auto stored = reader.want_scalar(below(a.base, a.scheme->names.global), &w.global_name);
  w.global_scale = multiplying(stored.value_or(1), *a.scheme);
  return stored.has_value();
}

bool find_input(BlockReader& reader, const LinearArgs& a, WeightSource& w) {
  if (!a.scheme->needs_input_scale()) return true;
  auto stored = reader.want_scalar(below(a.base, a.scheme->names.input), &w.input_name);
  if (stored) w.input_scale = multiplying(*stored, *a.scheme);
  return stored.has_value();
}

bool find_scales(BlockReader& reader, const LinearArgs& a, WeightSource& w) {
  if (a.scheme->kind == SchemeKind::kNone) return true;
  bool one = a.scheme->kind == SchemeKind::kFp8Tensor;
  bool scales = one ? find_one_scale(reader, a, w) : find_block_scales(reader, a, w);
  bool global = find_global(reader, a, w);
  return find_input(reader, a, w) && global && scales;
}

}  // namespace

formats::WeightLayout plain_layout(TensorType type) {
  formats::WeightLayout layout;
  layout.element = type == T::kF16 ? formats::Element::kFp16 : formats::Element::kBf16;
  return layout;
}

const std::vector<TensorType>& float_types() {
  static const std::vector<T> kTypes = {T::kF32, T::kBf16, T::kF16};
  return kTypes;
}

std::vector<TensorType> scale_types(const Scheme& scheme) {
  if (scheme.layout.scale == formats::ScaleType::kE4m3) return {T::kF8E4m3, T::kU8};
  if (scheme.layout.scale == formats::ScaleType::kE8m0) return {T::kU8, T::kF8E8m0};
  if (scheme.layout.power_of_two) return {T::kF32, T::kBf16, T::kF16, T::kF8E8m0, T::kU8};
  return float_types();
}

std::vector<TensorType> code_types(const Scheme& scheme) {
  if (is_e2m1(scheme)) return {T::kU8, T::kF4, T::kI8};
  if (scheme.kind == SchemeKind::kNone) return {T::kBf16, T::kF16, T::kF32};
  return {T::kF8E4m3};
}

Plane as_scales(Plane plane, const Scheme& scheme) {
  if (plane.type == T::kU8 && scheme.layout.scale != formats::ScaleType::kE4m3)
    plane.type = T::kF8E8m0;
  return plane;
}

float multiplying(float stored, const Scheme& scheme) {
  if (!scheme.names.divides) return stored;
  // 1 / inf would be a factor of zero: a silent expert. NaN is what check_scales refuses.
  return std::isinf(stored) ? std::numeric_limits<float>::quiet_NaN() : 1 / stored;
}

bool check_scales(BlockReader& reader, const WeightSource& w) {
  std::size_t before = reader.findings().size();
  ScaleStats s = scan_scales(w);
  if (s.bad > 0)
    reader.fault(FindingKind::kBadScale, w.scale_name,
                 cat("tensor '", w.scale_name, "': ", s.bad, " of ", s.count,
                     " scales are NaN, infinite or negative, the first is ", s.first_bad,
                     ", must be finite and >= 0; quantise the model again"));
  if (!std::isfinite(w.global_scale) || std::signbit(w.global_scale))
    reader.fault(FindingKind::kBadScale, w.global_name,
                 cat("tensor '", w.global_name, "' makes the factor ", w.global_scale,
                     ", must be finite and >= 0 (a stored divisor finite and > 0); quantise the "
                     "model again"));
  if (w.input_scale && !formats::serves_as_static_scale(*w.input_scale))
    reader.fault(FindingKind::kBadScale, w.input_name,
                 cat("tensor '", w.input_name, "' makes the factor ", *w.input_scale,
                     ", must be from 2^-126 to 2^126; calibrate the model again"));
  return reader.findings().size() == before;
}

std::optional<WeightSource> find_linear(BlockReader& reader, const LinearArgs& args) {
  if (args.scheme->kind == SchemeKind::kMxfp4Blocks) {
    std::string module = cat(reader.block(), ".", args.base);
    reader.fault(FindingKind::kContradiction, module,
                 cat("module '", module,
                     "' is declared mxfp4, which is served for experts "
                     "stacked as *_blocks and *_scales only; exclude it or store it so"));
    return {};
  }
  WeightSource w;
  w.layout = args.scheme->layout;
  w.rows = args.rows;
  w.cols = args.cols;
  bool codes = find_codes(reader, args, w);
  bool scales = find_scales(reader, args, w);
  if (!codes || !scales || !check_scales(reader, w)) return {};
  return w;
}

}  // namespace switchyard::checkpoint
