// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/cases/allreduce_case.h"

/// Each field of the fused all-reduce's parameter structs, set to what its base call does not have;
/// for every entry that takes them.
namespace switchyard::test {

using Pattern = ops::AllReduceFusionPattern;
using Call = ops::AllReduceCall;

/// One field, and what sets it apart.
struct FieldCase {
  std::string owner, field;
  ArSpec base;
  // Exactly one: another problem, or the same data with another call.
  std::function<void(ArSpec&)> other_problem{};
  std::function<void(Call&, ArData&)> other_call{};
};

inline ops::MoeFinalizeSource& finalize(Call& c) {
  return std::get<ops::MoeFinalizeSource>(c.source);
}
inline ops::MoeReductionSource& reduction(Call& c) {
  return std::get<ops::MoeReductionSource>(c.source);
}

inline ArSpec plain(Pattern p = Pattern::kARResidualRMSNorm) { return {.pattern = p, .ranks = 3}; }
inline ArSpec moe(Pattern p) { return {.pattern = p, .ranks = 3, .shared = true}; }

inline std::vector<FieldCase> common_cases() {
  const ArSpec base = moe(Pattern::kMoEFinalizeARResidualRMSNorm);
  return {
      {"shape", "tokens", base, [](ArSpec& s) { s.tokens = 6; }},
      {"shape", "hidden", base, [](ArSpec& s) { s.hidden = 66; }},
      {"shape", "dtype", base, [](ArSpec& s) { s.dtype = Dtype::kFp16; }},
      {"shape", "fp32_wire", base, [](ArSpec& s) { s.fp32_wire = true; }},
      {"shape", "legacy_rounding", base, [](ArSpec& s) { s.legacy_rounding = true; }},
      {"norm",
       "residual_in",
       base,
       {},
       [](Call& c, ArData& d) {
         // The same on all ranks: the rows that all have, from the second one on.
         std::rotate(d.residual.begin(), d.residual.begin() + 64 * 2, d.residual.end());
         c.norm->residual_in = d.residual.data();
       }},
      {"norm",
       "rms_gamma",
       base,
       {},
       [](Call& c, ArData& d) { c.norm->rms_gamma = d.residual.data(); }},
      {"norm", "rms_eps", base, [](ArSpec& s) { s.eps = 0.5f; }},
      {"norm", "weight_bias", base, [](ArSpec& s) { s.weight_bias = 1; }},
      {"norm", "residual_out", base, [](ArSpec& s) { s.want_residual = false; }},
      {"norm", "norm_out", base, [](ArSpec& s) { s.want_norm = false; }},
      {"norm", "quant", base, [](ArSpec& s) { s.quant = ops::AllReduceQuant::kFp8Token; }},
      {"plain",
       "input",
       plain(),
       {},
       [](Call& c, ArData& d) { c.source = ops::PlainSource{d.shared.data()}; }},
  };
}

inline std::vector<FieldCase> moe_cases() {
  const ArSpec six = moe(Pattern::kMoEReductionARResidualRMSNorm);
  const ArSpec seven = moe(Pattern::kMoEFinalizeARResidualRMSNorm);
  return {
      {"reduction",
       "active_experts_token_input",
       six,
       {},
       [](Call& c, ArData& d) {
         // One row further: expert-major rows of the next token.
         reduction(c).active_experts_token_input = d.rows.data() + 64 * 2;
         reduction(c).num_experts = 2;
         for (float& w : d.weights) w = 0;
         d.weights[0] = 0.5f;
       }},
      {"reduction",
       "scale_input",
       six,
       {},
       [](Call& c, ArData& d) {
         reduction(c).scale_input = d.weights.data();
         for (float& w : d.weights) w *= 2;
       }},
      {"reduction", "num_experts", six, {}, [](Call& c, ArData&) { reduction(c).num_experts = 2; }},
      {"reduction", "token_input", six, [](ArSpec& s) { s.shared = false; }},
      {"reduction", "routed_scaling_factor", six, [](ArSpec& s) { s.factor = 0.75f; }},
      {"finalize",
       "rows",
       seven,
       {},
       [](Call& c, ArData& d) {
         for (std::size_t i = 1; i < d.rows.size(); i += 2) d.rows[i] ^= 0x80;  // signs
         finalize(c).rows = d.rows.data();
       }},
      {"finalize", "expanded_idx_to_permuted_idx", seven, [](ArSpec& s) { s.all_dropped = true; }},
      {"finalize", "top_k", seven, [](ArSpec& s) { s.top_k = 2; }},
      {"finalize", "expert_scale_factor", seven, [](ArSpec& s) { s.weights = false; }},
      {"finalize", "scale_dtype", seven, [](ArSpec& s) { s.weights_in_t = true; }},
      {"finalize", "routed_scaling_factor", seven, [](ArSpec& s) { s.factor.reset(); }},
      {"finalize", "shared_expert_output", seven, [](ArSpec& s) { s.shared = false; }},
  };
}

inline std::vector<FieldCase> quant_cases() {
  const ArSpec fp8 = plain(Pattern::kARResidualRMSNormOutFP8Quant);
  const ArSpec fp4 = plain(Pattern::kARResidualRMSNormOutFP4Quant);
  const ArSpec group = plain(Pattern::kARResidualRMSNormOutPerTokenGroupFP8PackedQuant);
  return {
      {"fp8", "scale", fp8, [](ArSpec& s) { s.decode_scale = 0.02f; }},
      {"nvfp4", "scale", fp4, [](ArSpec& s) { s.encode_scale = 33; }},
      {"nvfp4", "layout", fp4, [](ArSpec& s) { s.layout = formats::ScaleLayout::k8x4; }},
      {"group", "group", group, [](ArSpec& s) { s.group = 24; }},
  };
}

/// All of them.
inline std::vector<FieldCase> field_cases() {
  std::vector<FieldCase> out = common_cases();
  for (const auto& more : {moe_cases(), quant_cases()})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

/// A case of every rank: data and calls with the field as it says.
struct FieldRun {
  explicit FieldRun(const FieldCase& c) : spec(c.base) {
    if (c.other_problem) c.other_problem(spec);
    for (int r = 0; r < int(spec.ranks); ++r) data.emplace_back(spec, r);
    for (ArData& d : data) {
      calls.push_back(d.call());
      if (c.other_call) c.other_call(calls.back(), d);
    }
  }
  ArSpec spec;
  std::vector<ArData> data;
  std::vector<Call> calls;
};

}  // namespace switchyard::test
