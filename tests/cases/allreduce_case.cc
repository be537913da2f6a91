// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/allreduce_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "switchyard/base/random.h"
#include "switchyard/formats/e2m1.h"
#include "switchyard/formats/e4m3.h"
#include "switchyard/formats/e8m0.h"

namespace switchyard::test {
namespace {

using ops::AllReduceQuant;
using Pattern = ops::AllReduceFusionPattern;

constexpr std::size_t kCanaryBytes = 64;
constexpr std::uint8_t kPoison = 0xcd, kCanary = 0xa7;

bool is_moe(Pattern p) {
  return p == Pattern::kMoEReductionARResidualRMSNorm ||
         p == Pattern::kMoEFinalizeARResidualRMSNorm;
}

/// Patterns whose name says that the norm is written beside the codes.
bool writes_norm(Pattern p) {
  switch (p) {
    case Pattern::kAllReduce:
    case Pattern::kARResidualRMSNormFP8Quant:
    case Pattern::kARResidualRMSNormFP4Quant:
    case Pattern::kARResidualRMSNormPerTokenGroupFP8PackedQuant:
    case Pattern::kARResidualRMSNormDynamicFP8Quant:
      return false;
    default:
      return true;
  }
}

float special(Dtype t, std::uint64_t which, float otherwise) {
  const float least = t == Dtype::kFp16 ? 0x1p-24f : t == Dtype::kBf16 ? 0x1p-133f : 0x1p-149f;
  switch (which % 40) {
    case 0:
      return -0.0f;
    case 1:
      return -least;  // 0x8001 in both halves of a word, when a neighbour has it too
    case 2:
      return least;
    case 3:
      return 3 * least;
    case 4:
      return which % 7 == 0 ? HUGE_VALF : otherwise;
    case 5:
      return which % 11 == 0 ? std::nanf("") : otherwise;
    default:
      return otherwise;
  }
}

float value_of(const ArSpec& s, const Random& random, std::uint64_t i) {
  const float x = random.normal(i);
  switch (s.payload) {
    case ArPayload::kNormal:
      return x;
    case ArPayload::kLarge:
      return x * 1500;
    case ArPayload::kTiny:
      return x * 0x1p-16f;
    case ArPayload::kZeros:
      return -0.0f;
    case ArPayload::kSpecial:
      return special(s.dtype, random.bits(i + (std::uint64_t(1) << 40)), x);
  }
  return x;
}

double ulp(Dtype t, double x) {
  const int bits = t == Dtype::kBf16 ? 8 : t == Dtype::kFp16 ? 11 : 24;
  const int least = t == Dtype::kFp16 ? -14 : -126;
  const int exponent = x == 0 || !std::isfinite(x) ? least : std::max(std::ilogb(x), least);
  return std::ldexp(1.0, exponent - bits + 1);
}

bool same_kind(double got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  return !std::isinf(want) || got == want;
}

/// How one tensor of T is compared.
struct Tensor {
  const char* name;
  const ArSpec& spec;
  const std::vector<std::uint8_t>& got;
  const std::vector<double>& want;
  const std::vector<double>* size;  // of the addends; null: the value itself
  double f32_ulps;

  double bound(std::size_t i) const {
    const double magnitude = size != nullptr ? (*size)[i] : std::fabs(want[i]);
    if (spec.dtype == Dtype::kF32) return f32_ulps * ulp(spec.dtype, magnitude);
    return ulp(spec.dtype, std::max(magnitude, std::fabs(want[i])));
  }

  std::string compare() const {
    std::size_t far = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double x = load_element(spec.dtype, got.data(), std::int64_t(i));
      const double error = std::fabs(x - want[i]);
      const bool fits = same_kind(x, want[i]) && (!std::isfinite(want[i]) || error <= bound(i));
      if (!fits)
        return cat(name, " of token ", std::int64_t(i) / spec.hidden, ", column ",
                   std::int64_t(i) % spec.hidden, " is ", x, ", the oracle has ", want[i]);
      far += spec.dtype != Dtype::kF32 && std::isfinite(want[i]) && error > ulp(spec.dtype, want[i])
                 ? 1
                 : 0;
    }
    if (far > 1 + want.size() / 1000)
      return cat(name, ": ", far, " of ", want.size(), " are off by more than one ulp");
    return "";
  }
};

/// Whether `got` is as near to `exact` as the oracle's choice is, within `slack` of it.
bool near_enough(double got, double nearest, double exact, double slack) {
  if (std::isnan(nearest) || std::isnan(got)) return std::isnan(nearest) && std::isnan(got);
  if (!std::isfinite(exact)) return got == nearest;
  return std::fabs(got - exact) <= std::fabs(nearest - exact) + slack * std::fabs(exact);
}

/// Where a scale lies in the output.
std::size_t scale_place(const ArSpec& s, std::int64_t blocks, std::int64_t m, std::int64_t b) {
  if (s.effective_quant() == AllReduceQuant::kNvfp4)
    return std::size_t(formats::scale_offset(s.layout, {s.tokens, blocks}, m, b));
  return std::size_t(((b / 4) * ((s.tokens + 3) / 4 * 4) + m) * 4 + b % 4);
}

/// The scales that a rank wrote, decoded in linear order; checks that the rest is 0.
std::string read_scales(const ArSpec& s, std::int64_t blocks, const ArOutput& out,
                        std::vector<double>& scales) {
  std::vector<bool> used(out.size, false);
  for (std::int64_t m = 0; m < s.tokens; ++m)
    for (std::int64_t b = 0; b < blocks; ++b) {
      if (s.effective_quant() == AllReduceQuant::kFp8Token) {
        float scale;
        std::memcpy(&scale, out.bytes.data() + m * 4, 4);
        scales.push_back(scale);
        std::fill_n(used.begin() + m * 4, 4, true);
        continue;
      }
      const std::size_t at = scale_place(s, blocks, m, b);
      used[at] = true;
      scales.push_back(s.effective_quant() == AllReduceQuant::kNvfp4
                           ? formats::decode_e4m3(out.bytes[at])
                           : formats::decode_e8m0(out.bytes[at]));
    }
  for (std::size_t i = 0; i < out.size; ++i)
    if (!used[i] && out.bytes[i] != 0) return cat("padding byte ", i, " of scale_out is not 0");
  return "";
}

double decoded_at(const ArSpec& s, const ArOutput& quant_out, std::int64_t i) {
  if (s.effective_quant() != AllReduceQuant::kNvfp4)
    return formats::decode_e4m3(quant_out.bytes[std::size_t(i)]);
  return formats::decode_e2m1(
      std::uint8_t(quant_out.bytes[std::size_t(i / 2)] >> (i % 2 * 4) & 15));
}

std::string compare_quant(const ArSpec& s, const ops::AllReduceCall& call, ArData& mine) {
  constexpr double kSlack = 0x1p-20;  // of a few roundings in fp32
  std::vector<double> norm, scales;
  for (std::int64_t i = 0; i < s.tokens * s.hidden; ++i)
    norm.push_back(load_element(s.dtype, mine.norm_out.data(), i));
  const ops::QuantReference first = ops::quantise_norm_ref(call, norm);
  std::string error = read_scales(s, first.blocks, mine.scale_out, scales);
  if (!error.empty()) return error;
  for (std::size_t i = 0; i < scales.size(); ++i)
    if (!near_enough(scales[i], first.scales[i], first.scale_values[i], kSlack))
      return cat("scale ", i, " is ", scales[i], ", the oracle has ", first.scales[i]);
  const ops::QuantReference want = ops::quantise_norm_ref(call, norm, &scales);
  for (std::size_t i = 0; i < want.values.size(); ++i) {
    const double got = decoded_at(s, mine.quant_out, std::int64_t(i));
    if (!near_enough(got, want.decoded[i], want.values[i], kSlack))
      return cat("code ", i, " is ", got, ", the oracle has ", want.decoded[i], " for ",
                 want.values[i]);
  }
  return "";
}

}  // namespace

AllReduceQuant ArSpec::effective_quant() const {
  return is_moe(pattern) ? quant : ops::quant_of(pattern);
}

std::string ArSpec::str() const {
  return cat(ops::to_string(pattern), " ", to_string(dtype), " ", ranks, " ranks [", tokens, ", ",
             hidden, "] ", ops::to_string(strategy), fp32_wire ? " fp32_wire" : "",
             legacy_rounding ? " legacy" : "", " quant ", ops::to_string(effective_quant()), " ",
             formats::to_string(layout), " payload ", int(payload), " seed ", seed);
}

void ArOutput::make(std::size_t size_in_bytes) {
  size = size_in_bytes;
  bytes.assign(size + kCanaryBytes, kCanary);
  poison();
}
void ArOutput::poison() { std::fill_n(bytes.begin(), size, kPoison); }
bool ArOutput::canary_intact() const {
  return std::all_of(bytes.begin() + std::ptrdiff_t(size), bytes.end(),
                     [](std::uint8_t b) { return b == kCanary; });
}

ArData::ArData(const ArSpec& spec, int rank) : spec_(spec) {
  const auto own = std::uint64_t(rank + 1) * 100;
  fill(input, is_moe(spec.pattern) ? 0 : spec.tokens, own);
  fill(residual, spec.tokens, 1);
  fill(shared, spec.tokens, own + 1);
  gamma.resize(std::size_t(spec.hidden) * size_of(spec.dtype));
  for (std::int64_t h = 0; h < spec.hidden; ++h)  // no specials, 0.5 .. 1.5
    store_element(spec.dtype, gamma.data(), h,
                  0.5f + Random(spec.seed, 3).uniform(std::uint64_t(h)));
  if (is_moe(spec.pattern)) make_experts(rank);
  make_outputs();
}

void ArData::fill(std::vector<std::uint8_t>& out, std::int64_t rows, std::uint64_t stream) {
  const Random random(spec_.seed, stream);
  out.resize(std::size_t(rows * spec_.hidden) * size_of(spec_.dtype));
  for (std::int64_t i = 0; i < rows * spec_.hidden; ++i)
    store_element(spec_.dtype, out.data(), i, value_of(spec_, random, std::uint64_t(i)));
}

// Rows that nothing refers to hold NaN: they must not be read into a sum.
void ArData::make_experts(int rank) {
  const auto own = std::uint64_t(rank + 1) * 100;
  const Random random(spec_.seed, own + 7);
  const bool finalize = spec_.pattern == Pattern::kMoEFinalizeARResidualRMSNorm;
  const std::int64_t columns = finalize ? spec_.top_k : spec_.experts;
  const std::int64_t count = spec_.tokens * columns;
  const std::int64_t num_rows = finalize ? count + 3 : count;
  fill(rows, num_rows, own + 2);
  auto forget = [&](std::int64_t row) {
    for (std::int64_t h = 0; h < spec_.hidden; ++h)
      store_element(spec_.dtype, rows.data(), row * spec_.hidden + h, std::nanf(""));
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const bool dropped = spec_.all_dropped || random.bits(std::uint64_t(i)) % 4 == 0;
    weights.push_back(0.1f + random.uniform(std::uint64_t(i) + 5000));
    // Distinct rows in another order than the choices'; now and then the same one twice.
    const std::int64_t row = i % 9 == 8 ? i - 1 : i;
    index.push_back(dropped ? -1 : std::int32_t(num_rows - 1 - row));
    if (!finalize && dropped) weights.back() = 0;
    if (!finalize && dropped) forget(i);
  }
  if (finalize)
    for (std::int64_t r = 0; r < num_rows; ++r)
      if (std::find(index.begin(), index.end(), std::int32_t(r)) == index.end()) forget(r);
  weights_t.resize(weights.size() * size_of(spec_.dtype));
  for (std::size_t i = 0; i < weights.size(); ++i)
    store_element(spec_.dtype, weights_t.data(), std::int64_t(i), weights[i]);
}

void ArData::make_outputs() {
  const ArSpec& s = spec_;
  const std::size_t rows = std::size_t(s.tokens * s.hidden) * size_of(s.dtype);
  output.make(rows);
  residual_out.make(rows);
  norm_out.make(rows);
  const auto elements = std::size_t(s.tokens * s.hidden);
  switch (s.effective_quant()) {
    case AllReduceQuant::kNone:
      return;
    case AllReduceQuant::kFp8Static:
      return quant_out.make(elements);
    case AllReduceQuant::kNvfp4:
      quant_out.make(elements / 2);
      return scale_out.make(
          std::size_t(formats::padded_scale_bytes(s.layout, {s.tokens, (s.hidden + 15) / 16})));
    case AllReduceQuant::kFp8Group:
      quant_out.make(elements);
      return scale_out.make(std::size_t(ops::group_scale_bytes(s.tokens, s.hidden, s.group)));
    case AllReduceQuant::kFp8Token:
      quant_out.make(elements);
      return scale_out.make(std::size_t(s.tokens) * 4);
  }
}

ops::AllReduceCall ArData::call() {
  const ArSpec& s = spec_;
  const ops::CallShape shape{s.tokens,   s.hidden,    s.dtype,
                             s.strategy, s.fp32_wire, s.legacy_rounding};
  if (s.pattern == Pattern::kAllReduce)
    return ops::AllReduceArgs{shape, {input.data()}, output.data()}.call();
  ops::NormArgs norm{.residual_in = residual.data(),
                     .rms_gamma = gamma.data(),
                     .rms_eps = s.eps,
                     .weight_bias = s.weight_bias};
  if (s.want_residual) norm.residual_out = residual_out.data();
  if (s.want_norm && writes_norm(s.pattern)) norm.norm_out = norm_out.data();
  auto* codes = static_cast<std::uint8_t*>(quant_out.data());
  auto* scales = static_cast<std::uint8_t*>(scale_out.data());
  if (s.effective_quant() == AllReduceQuant::kFp8Static)
    norm.quant = ops::Fp8StaticOut{{&spec_.decode_scale}, codes};
  if (s.effective_quant() == AllReduceQuant::kNvfp4)
    norm.quant = ops::Nvfp4Out{{&spec_.encode_scale}, codes, scales, s.layout};
  if (s.effective_quant() == AllReduceQuant::kFp8Group)
    norm.quant = ops::Fp8GroupOut{s.group, codes, scales};
  if (s.effective_quant() == AllReduceQuant::kFp8Token)
    norm.quant = ops::Fp8TokenOut{codes, reinterpret_cast<float*>(scales)};
  if (!is_moe(s.pattern)) return ops::ARResidualRMSNormArgs{shape, {input.data()}, norm}.call();
  const void* extra = s.shared ? shared.data() : nullptr;
  if (s.pattern == Pattern::kMoEReductionARResidualRMSNorm)
    return ops::MoEReductionArgs{shape,
                                 {.active_experts_token_input = rows.data(),
                                  .scale_input = weights.data(),
                                  .num_experts = s.experts,
                                  .token_input = extra,
                                  .routed_scaling_factor = s.factor},
                                 s.want_output ? output.data() : nullptr,
                                 norm}
        .call();
  const void* scale = s.weights_in_t ? static_cast<const void*>(weights_t.data()) : weights.data();
  return ops::MoEFinalizeArgs{shape,
                              {.rows = rows.data(),
                               .num_rows = s.tokens * s.top_k + 3,
                               .expanded_idx_to_permuted_idx = index.data(),
                               .top_k = s.top_k,
                               .expert_scale_factor = s.weights ? scale : nullptr,
                               .scale_dtype = s.weights_in_t ? s.dtype : Dtype::kF32,
                               .routed_scaling_factor = s.factor,
                               .shared_expert_output = extra},
                              norm}
      .call();
}

void ArData::poison() {
  for (ArOutput* o : {&output, &residual_out, &norm_out, &quant_out, &scale_out})
    if (!o->bytes.empty()) o->poison();
}

std::vector<std::uint8_t> ArData::outputs() const {
  std::vector<std::uint8_t> all;
  for (const ArOutput* o : {&output, &residual_out, &norm_out, &quant_out, &scale_out})
    all.insert(all.end(), o->bytes.begin(), o->bytes.begin() + std::ptrdiff_t(o->size));
  return all;
}

bool ArData::canaries_intact() const {
  for (const ArOutput* o : {&output, &residual_out, &norm_out, &quant_out, &scale_out})
    if (!o->canary_intact()) return false;
  return true;
}

std::vector<ops::AllReduceCall> calls_of(std::vector<ArData>& ranks) {
  std::vector<ops::AllReduceCall> out;
  for (ArData& r : ranks) out.push_back(r.call());
  return out;
}

std::string compare_with_oracle(const ArSpec& spec, std::span<const ops::AllReduceCall> ranks,
                                ArData& mine) {
  const ops::AllReduceCall& call = ranks[0];
  const double terms = double(spec.ranks + spec.experts + spec.top_k + 4);
  ops::AllReduceReference want = ops::allreduce_norm_ref(ranks);
  std::string error;
  if (call.output != nullptr) {
    std::vector<double> sum;
    for (double x : want.sum) sum.push_back(ops::round_to(spec.dtype, x));
    error = Tensor{"output", spec, mine.output.bytes, sum, &want.sum_size, terms}.compare();
  }
  if (!error.empty() || !call.norm) return error;
  if (call.norm->residual_out == nullptr) return "a comparison needs residual_out";
  error = Tensor{"residual_out",      spec, mine.residual_out.bytes, want.residual,
                 &want.residual_size, terms}
              .compare();
  if (!error.empty() || call.norm->norm_out == nullptr) return error;
  std::vector<double> residual;
  for (std::int64_t i = 0; i < spec.tokens * spec.hidden; ++i)
    residual.push_back(load_element(spec.dtype, mine.residual_out.data(), i));
  want = ops::allreduce_norm_ref(ranks, &residual);
  error = Tensor{"norm_out", spec, mine.norm_out.bytes, want.norm, nullptr, 16}.compare();
  if (!error.empty() || spec.effective_quant() == AllReduceQuant::kNone) return error;
  return compare_quant(spec, call, mine);
}

}  // namespace switchyard::test
