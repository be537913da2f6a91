// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

#include <array>
#include <cmath>

#include "switchyard/base/nearest.h"
#include "switchyard/core/problem.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"

namespace switchyard::ops {
namespace {

using Pattern = AllReduceFusionPattern;
using Quant = AllReduceQuant;

constexpr std::int64_t kMaxTokens = std::int64_t(1) << 31, kMaxChoices = 1024,
                       kMaxLocalExperts = 65536;

struct PatternRow {
  std::string_view name;
  Quant quant;
};
/// In order of value.
constexpr std::array<PatternRow, kNumAllReducePatterns> kPatterns{{
    {"kAllReduce", Quant::kNone},
    {"kARResidualRMSNorm", Quant::kNone},
    {"kARResidualRMSNormFP8Quant", Quant::kFp8Static},
    {"kARResidualRMSNormFP4Quant", Quant::kNvfp4},
    {"kARResidualRMSNormOutFP8Quant", Quant::kFp8Static},
    {"kARResidualRMSNormOutFP4Quant", Quant::kNvfp4},
    {"kMoEReductionARResidualRMSNorm", Quant::kNone},
    {"kMoEFinalizeARResidualRMSNorm", Quant::kNone},
    {"kARResidualRMSNormPerTokenGroupFP8PackedQuant", Quant::kFp8Group},
    {"kARResidualRMSNormOutPerTokenGroupFP8PackedQuant", Quant::kFp8Group},
    {"kARResidualRMSNormDynamicFP8Quant", Quant::kFp8Token},
    {"kARResidualRMSNormOutDynamicFP8Quant", Quant::kFp8Token},
}};

void check_factor(std::string_view what, const std::optional<float>& factor) {
  if (factor)
    require(std::isfinite(*factor), "allreduce: routed_scaling_factor of ", what, " is ", *factor,
            "; it must be finite (none means 1)");
}

void check_pair(std::string_view what, const void* quant_out, const void* scale_out) {
  require((quant_out == nullptr) == (scale_out == nullptr), "allreduce: ", what, " has a ",
          quant_out ? "quant_out without a scale_out" : "scale_out without a quant_out",
          "; neither can be read without the other: give both or leave the quantisation out");
  require(quant_out != nullptr, "allreduce: ", what,
          " is asked for but quant_out is null; give it or leave the quantisation out");
}

void check_scale(std::string_view name, const float* value) {
  require(value != nullptr, "allreduce: the ", name,
          " is null; point it to one float, 1 for no scaling");
}

void check_scale_value(std::string_view name, float value) {
  require(std::isfinite(value) && value > 0, "allreduce: the ", name, " is ", value,
          "; it must be finite and > 0");
}

/// Checks the quantised output that is asked for.
struct CheckQuant {
  const CallShape& shape;
  bool rows() const { return shape.tokens > 0; }
  void operator()(const std::monostate&) const {}
  void operator()(const Fp8StaticOut& q) const {
    require(q.quant_out != nullptr || !rows(), "allreduce: fp8 is asked for but quant_out is null");
    check_scale("decode scale", q.scale.value);
  }
  void operator()(const Nvfp4Out& q) const {
    if (rows()) check_pair("nvfp4", q.quant_out, q.scale_out);
    check_scale("encode scale", q.scale.value);
    require(shape.hidden % 2 == 0, "allreduce: hidden = ", shape.hidden,
            " is odd; a 4-bit output needs an even one (two codes share a byte)");
  }
  void operator()(const Fp8GroupOut& q) const {
    if (rows()) check_pair("fp8_group", q.quant_out, q.scale_out);
    require(q.group >= 1 && q.group <= kMaxWidth, "allreduce: groups of ", q.group,
            " columns; the limit is 1..", kMaxWidth);
  }
  void operator()(const Fp8TokenOut& q) const {
    if (rows()) check_pair("fp8_token", q.quant_out, q.scale_out);
  }
};

/// What GPUs limit further.
Eligibility supported_by_gpus(const AllReduceQuestion& q) {
  if (q.ranks > kMaxDeviceRanks)
    return Eligibility::no(
        Reject::kTopologyUnsupported,
        cat(q.ranks, " ranks on GPUs; the fused all-reduce joins 1..", kMaxDeviceRanks));
  if (q.hidden > kMaxDeviceHidden)
    return Eligibility::no(Reject::kShapeUnaligned,
                           cat("hidden = ", q.hidden, " on a GPU is outside 1..", kMaxDeviceHidden,
                               "; a row lies in shared memory"));
  return Eligibility::yes();
}

}  // namespace

std::string_view to_string(Pattern p) {
  ensure(int(p) < kNumAllReducePatterns, "all-reduce pattern ", int(p), " has no text");
  return kPatterns[std::size_t(p)].name;
}

Pattern to_allreduce_pattern(std::int64_t value) {
  require(value >= 0 && value < kNumAllReducePatterns, "all-reduce pattern ", value,
          " is unknown; they are 0..", kNumAllReducePatterns - 1);
  return Pattern(value);
}

std::string_view to_string(AllReduceStrategy s) {
  return s == AllReduceStrategy::kAuto      ? "auto"
         : s == AllReduceStrategy::kOneShot ? "one_shot"
                                            : "two_shot";
}

AllReduceStrategy to_allreduce_strategy(std::string_view s) {
  return to_enum(
      "all-reduce strategy", s,
      {AllReduceStrategy::kAuto, AllReduceStrategy::kOneShot, AllReduceStrategy::kTwoShot});
}

std::string_view to_string(Quant q) {
  constexpr std::string_view kNames[] = {"none", "fp8", "nvfp4", "fp8_group", "fp8_token"};
  return kNames[std::size_t(q)];
}

Quant to_allreduce_quant(std::string_view s) {
  return to_enum(
      "quantised output", s,
      {Quant::kNone, Quant::kFp8Static, Quant::kNvfp4, Quant::kFp8Group, Quant::kFp8Token});
}

void CallShape::check() const {
  require(tokens >= 0 && tokens < kMaxTokens, "allreduce: tokens = ", tokens, " is outside 0..",
          kMaxTokens - 1);
  require(hidden >= 1 && hidden <= kMaxWidth, "allreduce: hidden = ", hidden, " is outside 1..",
          kMaxWidth);
  require(!(fp32_wire && legacy_rounding),
          "allreduce: fp32_wire and legacy_rounding exclude each other, since legacy rounding is "
          "to T after every rank; choose one");
}

void NormArgs::check(const CallShape& shape) const {
  require(shape.tokens == 0 || (residual_in != nullptr && rms_gamma != nullptr),
          "allreduce: ", residual_in == nullptr ? "residual_in" : "rms_gamma",
          " is null; every pattern but kAllReduce needs both");
  require(std::isfinite(rms_eps) && rms_eps >= 0, "allreduce: rms_eps = ", rms_eps,
          "; it must be finite and >= 0");
  require(std::isfinite(weight_bias), "allreduce: weight_bias = ", weight_bias,
          "; it must be finite (0, or 1 for a weight of 1 + gamma)");
  std::visit(CheckQuant{shape}, quant);
}

void NormArgs::check_values() const {
  if (const auto* q = std::get_if<Fp8StaticOut>(&quant))
    check_scale_value("decode scale", *q->scale.value);
  if (const auto* q = std::get_if<Nvfp4Out>(&quant))
    check_scale_value("encode scale", *q->scale.value);
}

void PlainSource::check(const CallShape& shape) const {
  require(shape.tokens == 0 || input != nullptr, "allreduce: input is null but there are ",
          shape.tokens, " tokens; pass the rank's contribution");
}

void MoeReductionSource::check(const CallShape& shape) const {
  require(num_experts >= 0 && num_experts <= kMaxLocalExperts,
          "allreduce: num_experts = ", num_experts, " is outside 0..", kMaxLocalExperts);
  const bool none = shape.tokens == 0 || num_experts == 0;
  require(none || (active_experts_token_input != nullptr && scale_input != nullptr),
          "allreduce: ", scale_input == nullptr ? "scale_input" : "active_experts_token_input",
          " is null but there are ", num_experts,
          " experts; pass [experts, tokens] scales and "
          "[experts, tokens, hidden] rows");
  check_factor("kMoEReductionARResidualRMSNorm", routed_scaling_factor);
}

void MoeFinalizeSource::check(const CallShape& shape) const {
  require(top_k >= 0 && top_k <= kMaxChoices, "allreduce: top_k = ", top_k, " is outside 0..",
          kMaxTopK);
  require(num_rows >= 0 && num_rows < kMaxTokens, "allreduce: num_rows = ", num_rows,
          " is outside 0..", kMaxTokens - 1);
  require(
      shape.tokens == 0 || top_k == 0 || expanded_idx_to_permuted_idx != nullptr,
      "allreduce: expanded_idx_to_permuted_idx is null; pass [tokens, top_k] rows, -1 for none");
  require(num_rows == 0 || rows != nullptr, "allreduce: the expert rows are null but there are ",
          num_rows, " of them");
  require(scale_dtype == Dtype::kF32 || scale_dtype == shape.dtype,
          "allreduce: expert_scale_factor is ", to_string(scale_dtype), " beside rows of ",
          to_string(shape.dtype), "; it must be f32 or the rows' own type");
  check_factor("kMoEFinalizeARResidualRMSNorm", routed_scaling_factor);
  require(scale_factor_state == RoutedFactor::kPending || routed_scaling_factor.value_or(1) == 1,
          "allreduce: routed_scaling_factor = ", routed_scaling_factor.value_or(1),
          " beside weights that include it already; it would be applied twice: pass none");
}

void MoeFinalizeSource::check_values(const CallShape& shape) const {
  for (std::int64_t i = 0; i < shape.tokens * top_k; ++i) {
    const std::int32_t row = expanded_idx_to_permuted_idx[i];
    require(row >= -1 && row < num_rows, "allreduce: choice ", i % top_k, " of token ", i / top_k,
            " is row ", row, "; legal are 0..", num_rows - 1, " and -1 (not on this rank)");
  }
}

Pattern AllReduceCall::pattern() const {
  if (std::holds_alternative<MoeReductionSource>(source))
    return Pattern::kMoEReductionARResidualRMSNorm;
  if (std::holds_alternative<MoeFinalizeSource>(source))
    return Pattern::kMoEFinalizeARResidualRMSNorm;
  if (!norm) return Pattern::kAllReduce;
  const bool out = norm->norm_out != nullptr;
  switch (norm->quant_kind()) {
    case Quant::kNone:
      return Pattern::kARResidualRMSNorm;
    case Quant::kFp8Static:
      return out ? Pattern::kARResidualRMSNormOutFP8Quant : Pattern::kARResidualRMSNormFP8Quant;
    case Quant::kNvfp4:
      return out ? Pattern::kARResidualRMSNormOutFP4Quant : Pattern::kARResidualRMSNormFP4Quant;
    case Quant::kFp8Group:
      return out ? Pattern::kARResidualRMSNormOutPerTokenGroupFP8PackedQuant
                 : Pattern::kARResidualRMSNormPerTokenGroupFP8PackedQuant;
    case Quant::kFp8Token:
      return out ? Pattern::kARResidualRMSNormOutDynamicFP8Quant
                 : Pattern::kARResidualRMSNormDynamicFP8Quant;
  }
  throw InternalError("an all-reduce with an unknown quantised output");
}

void AllReduceCall::check() const {
  shape.check();
  std::visit([&](const auto& s) { s.check(shape); }, source);
  if (norm) norm->check(shape);
  const bool any =
      output != nullptr || (norm && (norm->residual_out != nullptr || norm->wants_norm()));
  require(any || shape.tokens == 0, "allreduce: ", to_string(pattern()),
          " has no output; give at least one of those that it writes");
}

void AllReduceCall::check_values() const {
  if (const auto* finalize = std::get_if<MoeFinalizeSource>(&source)) finalize->check_values(shape);
  if (norm) norm->check_values();
}

AllReduceCall AllReduceArgs::call() const { return {shape, source, output, std::nullopt}; }
AllReduceCall ARResidualRMSNormArgs::call() const { return {shape, source, nullptr, norm}; }
AllReduceCall MoEReductionArgs::call() const { return {shape, source, output, norm}; }
AllReduceCall MoEFinalizeArgs::call() const { return {shape, source, nullptr, norm}; }

Quant quant_of(Pattern p) { return kPatterns[std::size_t(p)].quant; }

Eligibility supports(const AllReduceQuestion& q) {
  const bool moe = q.pattern == Pattern::kMoEReductionARResidualRMSNorm ||
                   q.pattern == Pattern::kMoEFinalizeARResidualRMSNorm;
  if (!moe && q.quant != Quant::kNone && q.quant != quant_of(q.pattern))
    return Eligibility::no(
        Reject::kQuantUnsupported,
        cat(to_string(q.pattern), " quantises as ", to_string(quant_of(q.pattern)), ", not as ",
            to_string(q.quant), "; choose the pattern that has this output"));
  if (q.ranks < 1 || q.ranks > kMaxAllReduceRanks)
    return Eligibility::no(
        Reject::kTopologyUnsupported,
        cat(q.ranks, " ranks; the fused all-reduce joins 1..", kMaxAllReduceRanks));
  if (q.hidden < 1 || q.hidden > kMaxWidth)
    return Eligibility::no(Reject::kShapeUnaligned,
                           cat("hidden = ", q.hidden, " is outside 1..", kMaxWidth));
  const Quant quant = moe ? q.quant : quant_of(q.pattern);
  if (quant == Quant::kNvfp4 && q.hidden % 2 != 0)
    return Eligibility::no(Reject::kShapeUnaligned,
                           cat("hidden = ", q.hidden, " is odd; a 4-bit output needs an even one"));
  if (quant != Quant::kNvfp4 && q.layout == formats::ScaleLayout::k8x4)
    return Eligibility::no(Reject::kQuantUnsupported,
                           "the 8x4 layout is of nvfp4 scales; this output has none");
  return q.device == Device::kCuda ? supported_by_gpus(q) : Eligibility::yes();
}

}  // namespace switchyard::ops
