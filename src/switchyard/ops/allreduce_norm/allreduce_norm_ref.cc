// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/allreduce_norm/allreduce_norm_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"

namespace switchyard::ops {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Element (m, h) of a tensor of rows.
double at(const CallShape& s, const void* rows, std::int64_t m, std::int64_t h) {
  return load_element(s.dtype, rows, m * s.hidden + h);
}

/// What a sum is made of, step by step: plain double, or T's arithmetic.
struct Adder {
  const CallShape& s;
  double value = 0;
  double size = 0;  // sum of the magnitudes

  /// T(x) of a float result, as the legacy steps have it.
  double legacy(double x) const { return round_to(s.dtype, double(float(x))); }
  void add(double x, double size_of_x) {
    value = s.legacy_rounding ? legacy(value + x) : value + x;
    size += size_of_x;
  }
  void add(double x) { add(x, std::fabs(x)); }
  void add_weighted(double weight, double x) {
    add(s.legacy_rounding ? legacy(weight * x) : weight * x);
  }
  void multiply(double factor) {
    if (factor == 1) return;
    value = s.legacy_rounding ? legacy(value * factor) : value * factor;
    size *= std::fabs(factor);
  }
};

/// One rank's contribution to an element.
struct Contribution {
  const CallShape& s;
  std::int64_t m, h;

  Adder operator()(const PlainSource& source) const {
    Adder sum{s};
    sum.add(at(s, source.input, m, h));
    return sum;
  }
  Adder operator()(const MoeReductionSource& source) const {
    Adder sum{s};
    for (std::int64_t e = 0; e < source.num_experts; ++e)
      if (double w = source.scale_input[e * s.tokens + m]; w != 0)
        sum.add_weighted(w, at(s, source.active_experts_token_input, e * s.tokens + m, h));
    sum.multiply(source.routed_scaling_factor.value_or(1));
    if (source.token_input) sum.add(at(s, source.token_input, m, h));
    return sum;
  }
  Adder operator()(const MoeFinalizeSource& source) const {
    Adder sum{s};
    for (std::int64_t j = 0; j < source.top_k; ++j) {
      const std::int64_t choice = m * source.top_k + j;
      const std::int32_t row = source.expanded_idx_to_permuted_idx[choice];
      const double w = source.expert_scale_factor == nullptr
                           ? 1
                           : load_element(source.scale_dtype, source.expert_scale_factor, choice);
      if (row >= 0 && w != 0) sum.add_weighted(w, at(s, source.rows, row, h));
    }
    sum.multiply(source.routed_scaling_factor.value_or(1));
    if (source.shared_expert_output) sum.add(at(s, source.shared_expert_output, m, h));
    return sum;
  }
};

double wire(const CallShape& s, std::size_t ranks, double x) {
  if (ranks == 1) return x;
  return s.fp32_wire ? double(float(x)) : round_to(s.dtype, x);
}

Adder sum_over_ranks(std::span<const AllReduceCall> ranks, std::int64_t m, std::int64_t h) {
  Adder sum{ranks[0].shape};
  for (const AllReduceCall& call : ranks) {
    const Adder part = std::visit(Contribution{call.shape, m, h}, call.source);
    sum.add(wire(call.shape, ranks.size(), part.value), part.size);
  }
  return sum;
}

void norm_of_row(const CallShape& s, const NormArgs& args, const double* p, double* out) {
  double squares = 0;
  for (std::int64_t h = 0; h < s.hidden; ++h) squares += p[h] * p[h];
  const double rstd = 1 / std::sqrt(squares / double(s.hidden) + double(args.rms_eps));
  for (std::int64_t h = 0; h < s.hidden; ++h)
    out[h] = round_to(
        s.dtype,
        p[h] * rstd * (double(args.weight_bias) + load_element(s.dtype, args.rms_gamma, h)));
}

/// The nearest of the magnitudes that `decode` gives for codes 0 .. last, ties to the even code.
template <class Decode>
double nearest_value(double x, int last, Decode decode) {
  if (std::isnan(x)) return kNan;
  const double m = std::fabs(x);
  int best = 0;
  for (int c = 1; c <= last; ++c) {
    const double here = std::fabs(m - decode(std::uint8_t(c)));
    const double there = std::fabs(m - decode(std::uint8_t(best)));
    if (here < there || (here == there && c % 2 == 0)) best = c;
    if (std::isinf(m)) best = last;
  }
  return std::copysign(decode(std::uint8_t(best)), x);
}

double nearest_e4m3(double x) {
  return nearest_value(x, 0x7e, [](std::uint8_t c) { return double(formats::decode_e4m3(c)); });
}

/// E2M1 has no NaN: it becomes 6.
double nearest_e2m1(double x) {
  if (std::isnan(x)) return formats::kE2m1Max;
  return nearest_value(x, 7, [](std::uint8_t c) { return double(formats::decode_e2m1(c)); });
}

/// Smallest power of two that is >= x.
double power_above(double x) {
  if (std::isnan(x)) return kNan;
  if (std::isinf(x)) return 0x1p127;
  int exponent = 0;
  const double mantissa = std::frexp(x, &exponent);
  return std::ldexp(1.0, mantissa == 0.5 ? exponent - 1 : exponent);
}

/// How one kind of output scales.
struct Scaling {
  AllReduceQuant kind;
  std::int64_t block = 0;  // columns per scale; 0: no scales
  double g = 1;

  double scale_value(double amax) const {
    constexpr double kMax = 448;
    if (std::isnan(amax)) return kNan;
    if (kind == AllReduceQuant::kNvfp4) return g * amax / 6;
    return kind == AllReduceQuant::kFp8Group ? std::max(amax / kMax, 1e-10)
                                             : std::max(amax / kMax, 0x1p-9 / kMax);
  }
  double scale(double value) const {
    if (kind == AllReduceQuant::kNvfp4) return nearest_e4m3(value);
    return kind == AllReduceQuant::kFp8Group ? power_above(value) : double(float(value));
  }
  double value(double n, double scale) const {
    if (kind == AllReduceQuant::kFp8Static) return n / g;
    if (kind == AllReduceQuant::kNvfp4) return scale == 0 ? n * 0 : n * (g / scale);
    return n / scale;
  }
};

Scaling scaling_of(const NormArgs& norm, std::int64_t hidden) {
  if (const auto* q = std::get_if<Fp8StaticOut>(&norm.quant))
    return {AllReduceQuant::kFp8Static, 0, double(*q->scale.value)};
  if (const auto* q = std::get_if<Nvfp4Out>(&norm.quant))
    return {AllReduceQuant::kNvfp4, 16, double(*q->scale.value)};
  if (const auto* q = std::get_if<Fp8GroupOut>(&norm.quant))
    return {AllReduceQuant::kFp8Group, q->group};
  return {norm.quant_kind(), hidden};
}

double amax_of(const double* x, std::int64_t n) {
  double amax = 0;
  for (std::int64_t i = 0; i < n; ++i)
    amax = std::isnan(x[i]) || std::isnan(amax) ? kNan : std::max(amax, std::fabs(x[i]));
  return amax;
}

}  // namespace

double round_to(Dtype t, double x) {
  if (t == Dtype::kF32) return double(float(x));
  if (!std::isfinite(x) || x == 0) return x;
  const int bits = t == Dtype::kBf16 ? 8 : 11, least = t == Dtype::kBf16 ? -126 : -14;
  const double most = t == Dtype::kBf16 ? 0x1.fep127 : 65504.0;
  const int exponent = std::max(std::ilogb(x), least);
  const double ulp = std::ldexp(1.0, exponent - bits + 1);
  const double rounded = std::copysign(std::nearbyint(x / ulp) * ulp, x);
  return std::fabs(rounded) > most ? std::copysign(HUGE_VAL, x) : rounded;
}

AllReduceReference allreduce_norm_ref(std::span<const AllReduceCall> ranks,
                                      const std::vector<double>* given_residual) {
  for (const AllReduceCall& call : ranks) {
    call.check();
    call.check_values();
  }
  const AllReduceCall& first = ranks[0];
  const CallShape& s = first.shape;
  const auto size = std::size_t(s.tokens * s.hidden);
  AllReduceReference out;
  for (std::int64_t m = 0; m < s.tokens; ++m)
    for (std::int64_t h = 0; h < s.hidden; ++h) {
      const Adder sum = sum_over_ranks(ranks, m, h);
      out.sum.push_back(sum.value);
      out.sum_size.push_back(sum.size);
    }
  if (!first.norm) return out;
  out.residual.resize(size);
  out.norm.resize(size);
  for (std::int64_t m = 0; m < s.tokens; ++m)
    for (std::int64_t h = 0; h < s.hidden; ++h) {
      const auto i = std::size_t(m * s.hidden + h);
      const double r = out.sum[i] + at(s, first.norm->residual_in, m, h);
      out.residual_size.push_back(out.sum_size[i] +
                                  std::fabs(at(s, first.norm->residual_in, m, h)));
      out.residual[i] = round_to(s.dtype, s.legacy_rounding ? double(float(r)) : r);
    }
  const std::vector<double>& p = given_residual != nullptr ? *given_residual : out.residual;
  for (std::int64_t m = 0; m < s.tokens; ++m)
    norm_of_row(s, *first.norm, p.data() + m * s.hidden, out.norm.data() + m * s.hidden);
  return out;
}

QuantReference quantise_norm_ref(const AllReduceCall& call, const std::vector<double>& norm,
                                 const std::vector<double>* given_scales) {
  const CallShape& s = call.shape;
  const Scaling how = scaling_of(*call.norm, s.hidden);
  QuantReference out;
  const bool scaled = how.kind != AllReduceQuant::kFp8Static;
  out.blocks = scaled ? (s.hidden + how.block - 1) / how.block : 0;
  for (std::int64_t m = 0; m < s.tokens; ++m)
    for (std::int64_t b = 0; b < out.blocks; ++b) {
      const std::int64_t begin = b * how.block;
      out.scale_values.push_back(how.scale_value(
          amax_of(norm.data() + m * s.hidden + begin, std::min(how.block, s.hidden - begin))));
      out.scales.push_back(how.scale(out.scale_values.back()));
    }
  const std::vector<double>& scales = given_scales != nullptr ? *given_scales : out.scales;
  const bool four_bits = how.kind == AllReduceQuant::kNvfp4;
  for (std::int64_t i = 0; i < s.tokens * s.hidden; ++i) {
    const std::int64_t block = scaled ? i / s.hidden * out.blocks + i % s.hidden / how.block : 0;
    out.values.push_back(
        how.value(norm[std::size_t(i)], scaled ? scales[std::size_t(block)] : 1.0));
    out.decoded.push_back(four_bits ? nearest_e2m1(out.values.back())
                                    : nearest_e4m3(out.values.back()));
  }
  return out;
}

std::vector<double> dequantise(const AllReduceCall& call, const QuantReference& quant) {
  const CallShape& s = call.shape;
  const Scaling how = scaling_of(*call.norm, s.hidden);
  std::vector<double> out;
  for (std::int64_t i = 0; i < s.tokens * s.hidden; ++i) {
    double scale = how.g;  // of fp8, which decodes
    if (quant.blocks > 0)
      scale = quant.scales[std::size_t(i / s.hidden * quant.blocks + i % s.hidden / how.block)];
    if (how.kind == AllReduceQuant::kNvfp4) scale /= how.g;
    out.push_back(quant.decoded[std::size_t(i)] * scale);
  }
  return out;
}

}  // namespace switchyard::ops
