// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/run_experts.h"

namespace switchyard::layer {
namespace {

ops::FfnCall call_of(const ops::FfnArgs& a) {
  return {a.shape, a.tokens, a.pool != nullptr ? a.pool->size() : 1, a.isa};
}

TacticUse used_for(const leaves::Leaf& leaf, const TacticList& list, const ops::FfnCall& call) {
  const TacticUse* chosen = list.find(call.tokens);
  return chosen != nullptr ? *chosen : TacticUse{leaf.ffn->plan(call), TacticOrigin::kPlanner};
}

/// Visits the tunable calls of a forward on one rank.
template <class Visit>
void each_call(const Layer& layer, std::int64_t tokens, Visit&& visit) {
  const LayerOptions& o = layer.options();
  if (tokens == 0) return;
  const auto with = [&](std::string_view name, const leaves::Leaf& leaf, const ExpertBank& bank) {
    visit(name, leaf, bank,
          ops::FfnCall{&bank.shape, tokens, o.pool != nullptr ? o.pool->size() : 1, o.isa});
  };
  if (layer.shared() != nullptr) with(kSharedCall, *o.shared_leaf, *layer.shared());
  with(kExpertsCall, *o.leaf, layer.routed());
}

}  // namespace

void run_experts(const ExpertsCall& c, ops::FfnArgs& a) {
  if (a.tokens == 0) return c.leaf->ffn->forward(a);
  const ops::FfnCall call = call_of(a);
  TacticUse use = used_for(*c.leaf, *c.tactics, call);
  if (c.tape != nullptr)
    if (const Tactic* replayed = c.tape->next(c.name, *c.leaf, call))
      use = {*replayed, TacticOrigin::kReplay};
  if (c.used != nullptr) *c.used = use;
  a.tactic = &use.tactic;
  c.leaf->ffn->forward(a);
  a.tactic = nullptr;
}

std::vector<CallTactic> tactics_of(const Layer& layer, std::int64_t tokens) {
  std::vector<CallTactic> out;
  each_call(layer, tokens,
            [&](std::string_view name, const leaves::Leaf& leaf, const ExpertBank& bank,
                const ops::FfnCall& call) {
              out.push_back({name, used_for(leaf, bank.tactics, call)});
            });
  return out;
}

std::vector<tune::TunableCall> tunable_calls(const Layer& layer, std::int64_t tokens) {
  std::vector<tune::TunableCall> out;
  each_call(
      layer, tokens,
      [&](std::string_view name, const leaves::Leaf& leaf, const ExpertBank&,
          const ops::FfnCall& call) {
        out.push_back({std::string(name), tune::key_of(leaf, call), leaf.ffn->candidates(call)});
      });
  return out;
}

}  // namespace switchyard::layer
