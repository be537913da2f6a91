// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// A binary float type by its numbers alone: nothing here is shared with the twins.
struct Type {
  int significant;   // bits, the implicit one counted
  int min_exponent;  // of the smallest normal
  double max;        // saturates there when `saturates`, else the next binade is infinity
  bool saturates;
};
constexpr Type kE4m3{4, -6, 448, true}, kE2m1{2, 0, 6, true};
constexpr Type kBf16{8, -126, 0x1.fep127, false};

/// Nearest value of `t`, ties to even, sign kept; NaN stays NaN.
double round_to(const Type& t, double x) {
  if (std::isnan(x)) return x;
  if (std::isinf(x)) return t.saturates ? std::copysign(t.max, x) : x;
  int exponent;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  double step = std::ldexp(1.0, std::max(exponent - 1, t.min_exponent) - (t.significant - 1));
  double rounded = std::copysign(std::nearbyint(x / step) * step, x);
  if (std::fabs(rounded) <= t.max) return rounded;
  return std::copysign(t.saturates ? t.max : std::numeric_limits<double>::infinity(), x);
}

double amax_ref(const float* x, std::int64_t count) {
  double amax = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(x[i])) return kNan;
    amax = std::max(amax, std::fabs(double(x[i])));
  }
  return amax;
}

/// 2^max(e, min_exponent) for the smallest e with max * 2^e >= amax.
double power_of_two_scale(double amax, double max, int min_exponent) {
  if (std::isnan(amax)) return kNan;
  if (std::isinf(amax)) amax = 0x1p128;  // the first value that fp32 lacks
  int e = min_exponent;
  while (std::ldexp(max, e) < amax) ++e;
  return std::ldexp(1.0, e);
}

/// Divisions and products below are fp32 operations: their rounding is part of the contract.
void fp8_ref(const float* x, std::int64_t count, float scale, double* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = round_to(kE4m3, x[i] / scale) * double(scale);
}

float fp8_scale_ref(double amax, bool power_of_two) {
  double floored = amax < double(1e-4f) ? double(1e-4f) : amax;
  return power_of_two ? float(power_of_two_scale(floored, 448, -126)) : float(floored) / 448.0f;
}

void mxfp8_ref(const float* x, std::int64_t count, double* out) {
  double scale = power_of_two_scale(amax_ref(x, count), 448, -127);
  for (std::int64_t i = 0; i < count; ++i) out[i] = round_to(kE4m3, x[i] / scale) * scale;
}

void nvfp4_ref(const float* x, std::int64_t count, float global, double* out) {
  float g = 1.0f / global;
  float scale = float(round_to(kE4m3, g * float(amax_ref(x, count)) / 6.0f));
  float multiplier = scale == 0 ? 0 : g / scale;
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = scale == 0 ? 0 : round_to(kE2m1, x[i] * multiplier) * double(scale) * double(global);
}

}  // namespace

void quantize_row_ref(const QuantizeRowArgs& args, double* out) {
  args.check();
  auto per_block = [&](std::int64_t width, auto quantise) {
    for (std::int64_t b = 0; b < args.cols; b += width)
      quantise(args.x + b, std::min(width, args.cols - b), out + b);
  };
  switch (args.kind) {
    case ActivationQuant::kNone:
      for (std::int64_t i = 0; i < args.cols; ++i) out[i] = round_to(kBf16, args.x[i]);
      return;
    case ActivationQuant::kFp8Block128:
    case ActivationQuant::kFp8Block128Ue8m0:
      return per_block(128, [&](const float* x, std::int64_t n, double* y) {
        bool power_of_two = args.kind == ActivationQuant::kFp8Block128Ue8m0;
        fp8_ref(x, n, fp8_scale_ref(amax_ref(x, n), power_of_two), y);
      });
    case ActivationQuant::kFp8Token:
      return fp8_ref(args.x, args.cols, fp8_scale_ref(amax_ref(args.x, args.cols), false), out);
    case ActivationQuant::kFp8Tensor:
      return fp8_ref(args.x, args.cols, args.static_scale, out);
    case ActivationQuant::kMxfp8:
      return per_block(32, mxfp8_ref);
    case ActivationQuant::kNvfp4:
      return per_block(16, [&](const float* x, std::int64_t n, double* y) {
        nvfp4_ref(x, n, args.static_scale, y);
      });
    case ActivationQuant::kF32:
      break;
  }
  throw InternalError("quantize_row_ref: f32 activations are not quantised");
}

}  // namespace switchyard::ops
