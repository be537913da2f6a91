// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/quantize/quantize.h"

#include "switchyard/base/check.h"
#include "switchyard/formats/static_scale.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

void check_kind(ActivationQuant kind, float static_scale) {
  ensure(kind != ActivationQuant::kF32, "f32 activations are not quantised: read them as they are");
  if (!formats::is_static(kind)) return;
  require(formats::serves_as_static_scale(static_scale), "static ", to_string(kind),
          " activation scale is ", static_scale,
          ": it and its reciprocal must be positive normal numbers; calibrate the layer");
}

}  // namespace

void QuantizeRowArgs::check() const {
  check_kind(kind, static_scale);
  require(cols >= 0, "a row of ", cols, " activations: the width must not be negative");
  ensure(cols == 0 || x != nullptr, "quantize: the row is null");
}

void QuantizeCodesArgs::check() const {
  check_kind(kind, static_scale);
  require(rows >= 0 && cols >= 0, rows, " rows of ", cols,
          " activations: extents must not be negative");
  require(kind != ActivationQuant::kNvfp4 || cols % 2 == 0, "nvfp4 rows of ", cols,
          " activations: two codes share a byte, so the width must be even; pad it with a zero");
  ensure(rows * cols == 0 || (x != nullptr && codes != nullptr),
         "quantize: rows or codes are null");
  ensure(rows * activation_scale_bytes(kind, cols) == 0 || scales != nullptr,
         "quantize: scales are null");
}

std::int64_t activation_code_bytes(ActivationQuant kind, std::int64_t cols) {
  return kind == ActivationQuant::kNone    ? 2 * cols
         : kind == ActivationQuant::kF32   ? 4 * cols
         : kind == ActivationQuant::kNvfp4 ? (cols + 1) / 2
                                           : cols;
}

std::int64_t activation_scale_bytes(ActivationQuant kind, std::int64_t cols) {
  switch (kind) {
    case ActivationQuant::kFp8Block128:
    case ActivationQuant::kFp8Block128Ue8m0:
      return (cols + 127) / 128 * 4;
    case ActivationQuant::kFp8Token:
      return 4;
    case ActivationQuant::kMxfp8:
      return (cols + 31) / 32;
    case ActivationQuant::kNvfp4:
      return (cols + 15) / 16;
    case ActivationQuant::kNone:
    case ActivationQuant::kF32:
    case ActivationQuant::kFp8Tensor:
      break;
  }
  return 0;
}

}  // namespace switchyard::ops
