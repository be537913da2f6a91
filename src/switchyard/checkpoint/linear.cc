// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/linear.h"

#include <cmath>

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {
namespace {

using T = TensorType;

std::vector<T> block_scale_types(const Scheme& scheme) {
  if (scheme.layout.power_of_two) return {T::kF32, T::kBf16, T::kF16, T::kF8E8m0, T::kU8};
  return {T::kF32, T::kBf16, T::kF16};
}

/// Byte-sized E8M0 scales are stored as U8 or as F8_E8M0; both mean the same here.
Plane scale_plane(const Tensor& t, std::int64_t rows, std::int64_t cols) {
  Plane p = dense_plane(t, 0, rows, cols);
  if (p.type == T::kU8) p.type = T::kF8E8m0;
  return p;
}

bool find_plain(BlockReader& reader, const std::string& base, WeightSource& w) {
  const Tensor* t =
      reader.want(base + ".weight", {{T::kBf16, T::kF16, T::kF32}, {w.rows, w.cols}}, &w.name);
  if (!t) return false;
  w.layout = plain_layout(t->type);
  w.codes = dense_plane(*t, 0, w.rows, w.cols);
  return true;
}

bool find_e4m3(BlockReader& reader, const std::string& base, WeightSource& w) {
  const Tensor* t = reader.want(base + ".weight", {{T::kF8E4m3}, {w.rows, w.cols}}, &w.name);
  if (t) w.codes = dense_plane(*t, 0, w.rows, w.cols);
  return t != nullptr;
}

bool find_fp8_block(BlockReader& reader, const std::string& base, const Scheme& scheme,
                    WeightSource& w) {
  bool codes = find_e4m3(reader, base, w);
  std::int64_t rows = w.layout.scale_rows(w.rows), cols = w.layout.scale_cols(w.cols);
  const Tensor* t = reader.want(base + ".weight_scale_inv",
                                {block_scale_types(scheme), {rows, cols}}, &w.scale_name);
  if (t) w.scales = scale_plane(*t, rows, cols);
  return codes && t;
}

bool find_input_scale(BlockReader& reader, const std::string& base, const Scheme& scheme,
                      WeightSource& w) {
  if (!scheme.needs_input_scale()) return true;
  w.input_scale = reader.want_scalar(base + ".input_scale");
  return w.input_scale.has_value();
}

bool find_fp8_tensor(BlockReader& reader, const std::string& base, const Scheme& scheme,
                     WeightSource& w) {
  bool codes = find_e4m3(reader, base, w);
  bool scale = reader.want_scalar(base + ".weight_scale").has_value();
  if (scale) {
    const Tensor* t = reader.peek(base + ".weight_scale", &w.scale_name);
    w.scales = dense_plane(*t, 0, 1, 1);
  }
  return find_input_scale(reader, base, scheme, w) && codes && scale;
}

/// Two codes a byte: U8 [rows, cols/2], or F4 [rows, cols].
bool find_e2m1(BlockReader& reader, const std::string& base, WeightSource& w) {
  const Tensor* stored = reader.peek(base + ".weight");
  bool counts_elements = stored && stored->type == T::kF4;
  const Tensor* t = reader.want(
      base + ".weight", {{T::kU8, T::kF4, T::kI8}, {w.rows, counts_elements ? w.cols : w.cols / 2}},
      &w.name);
  if (t && w.cols % 2 != 0) {
    reader.fault(FindingKind::kMisshaped, w.name,
                 cat("tensor '", w.name, "' has ", w.cols,
                     " columns of 4-bit codes, must be even (two share a byte); the checkpoint is "
                     "not NVFP4"));
    return false;
  }
  if (t) w.codes = dense_plane(*t, 0, w.rows, w.cols / 2);
  return t != nullptr;
}

bool find_nvfp4(BlockReader& reader, const std::string& base, const Scheme& scheme,
                WeightSource& w) {
  bool codes = find_e2m1(reader, base, w);
  std::int64_t rows = w.layout.scale_rows(w.rows), cols = w.layout.scale_cols(w.cols);
  const Tensor* t =
      reader.want(base + ".weight_scale", {{T::kF8E4m3, T::kU8}, {rows, cols}}, &w.scale_name);
  if (t) w.scales = dense_plane(*t, 0, rows, cols);
  auto global = reader.want_scalar(base + ".weight_scale_2");
  w.global_scale = global.value_or(1);
  return find_input_scale(reader, base, scheme, w) && codes && t && global;
}

}  // namespace

formats::WeightLayout plain_layout(TensorType type) {
  formats::WeightLayout layout;
  layout.element = type == T::kF16 ? formats::Element::kFp16 : formats::Element::kBf16;
  return layout;
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
    reader.fault(FindingKind::kBadScale, w.name,
                 cat("tensor '", w.name, "_scale_2' is ", w.global_scale,
                     ", must be finite and >= 0; quantise the model again"));
  if (w.input_scale && !(std::isfinite(*w.input_scale) && *w.input_scale > 0)) {
    std::string tensor = w.name.substr(0, w.name.rfind('.')) + ".input_scale";
    reader.fault(FindingKind::kBadScale, tensor,
                 cat("tensor '", tensor, "' is ", *w.input_scale,
                     ", must be finite and > 0; calibrate the model again"));
  }
  return reader.findings().size() == before;
}

std::optional<WeightSource> find_linear(BlockReader& reader, const std::string& base,
                                        std::int64_t rows, std::int64_t cols,
                                        const Scheme& scheme) {
  WeightSource w;
  w.layout = scheme.layout;
  w.rows = rows;
  w.cols = cols;
  bool found = false;
  switch (scheme.kind) {
    case SchemeKind::kNone:
      found = find_plain(reader, base, w);
      break;
    case SchemeKind::kFp8Block:
      found = find_fp8_block(reader, base, scheme, w);
      break;
    case SchemeKind::kFp8Tensor:
      found = find_fp8_tensor(reader, base, scheme, w);
      break;
    case SchemeKind::kNvfp4:
      found = find_nvfp4(reader, base, scheme, w);
      break;
    case SchemeKind::kMxfp4:
      reader.fault(FindingKind::kContradiction, cat(reader.block(), ".", base),
                   cat("module '", reader.block(), ".", base,
                       "' is declared mxfp4, which is served for experts "
                       "stacked as *_blocks and *_scales only; exclude it or store it so"));
  }
  if (!found || !check_scales(reader, w)) return {};
  return w;
}

}  // namespace switchyard::checkpoint
