// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/call_key.h"

#include "switchyard/base/text.h"

namespace switchyard::tune {
namespace {

std::string text_of(const formats::WeightLayout& l) {
  return cat(formats::to_string(l.element), " ", formats::to_string(l.scale), " ", l.block_rows,
             "x", l.block_cols, l.global_scale ? " global" : "", l.power_of_two ? " ue8m0" : "");
}

}  // namespace

CallKey key_of(const leaves::Leaf& leaf, const ops::FfnCall& call) {
  const ops::FfnShape& s = *call.shape;
  return {.leaf = leaf.id.str(),
          .hidden = s.hidden,
          .inter = s.inter,
          .experts = s.experts,
          .top_k = s.top_k,
          .gated = s.gated,
          .bias = s.bias,
          .weight_on_input = s.weight_on_input,
          .weights = text_of(s.weights),
          .quant = std::string(formats::to_string(s.quant)),
          .dtype = std::string(to_string(s.dtype)),
          .tokens = token_bucket(call.tokens),
          .threads = leaf.device == Device::kCpu ? call.threads : 0};
}

std::string to_string(const CallKey& k) {
  std::string out = cat(k.leaf, " ", k.hidden, "/", k.inter, "/", k.experts, "/", k.top_k,
                        k.gated ? "" : " ungated", k.bias ? " bias" : "",
                        k.weight_on_input ? " weight on input" : "", ", activations ", k.quant,
                        " of ", k.dtype, ", up to ", k.tokens, " tokens");
  return k.threads > 0 ? cat(out, ", ", k.threads, k.threads == 1 ? " thread" : " threads") : out;
}

}  // namespace switchyard::tune
