// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/allreduce_words.h"

#include <bit>
#include <optional>

namespace switchyard::comm {
namespace {

std::optional<float> factor_of(const ops::AllReduceCall& call) {
  if (const auto* s = std::get_if<ops::MoeReductionSource>(&call.source))
    return s->routed_scaling_factor;
  if (const auto* s = std::get_if<ops::MoeFinalizeSource>(&call.source))
    return s->routed_scaling_factor;
  return std::nullopt;
}

/// What is wanted, so that ranks which ask for different things are told.
std::uint32_t outputs_word(const ops::AllReduceCall& call) {
  std::uint32_t word = call.output != nullptr ? 1 : 0;
  if (!call.norm) return word;
  const ops::NormArgs& n = *call.norm;
  word |= n.residual_out != nullptr ? 2U : 0U;
  word |= n.norm_out != nullptr ? 4U : 0U;
  word |= std::uint32_t(n.quant_kind()) << 3;
  // The rest is what shapes the scales of that kind: the width of a group, or their layout.
  if (const auto* group = std::get_if<ops::Fp8GroupOut>(&n.quant))
    word |= std::uint32_t(group->group) << 6;
  if (const auto* blocks = std::get_if<ops::Nvfp4Out>(&n.quant))
    word |= std::uint32_t(blocks->layout) << 6;
  return word;
}

}  // namespace

AllReduceWords allreduce_words(const ops::AllReduceCall& call, ops::AllReduceStrategy strategy) {
  const ops::CallShape& s = call.shape;
  return {std::uint32_t(s.tokens),
          std::uint32_t(s.hidden),
          std::uint32_t(s.dtype),
          std::uint32_t(strategy),
          (s.fp32_wire ? 1U : 0U) | (s.legacy_rounding ? 2U : 0U),
          std::uint32_t(call.pattern()),
          outputs_word(call),
          call.norm ? std::bit_cast<std::uint32_t>(call.norm->rms_eps) : 0U,
          call.norm ? std::bit_cast<std::uint32_t>(call.norm->weight_bias) : 0U,
          std::bit_cast<std::uint32_t>(factor_of(call).value_or(1))};
}

}  // namespace switchyard::comm
