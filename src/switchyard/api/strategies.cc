// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/strategies.h"

#include <algorithm>
#include <array>

#include "switchyard/api/machine.h"
#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"
#include "switchyard/resolve/switches.h"

namespace switchyard {
namespace {

constexpr std::string_view kCommSwitch = "SWITCHYARD_COMM";
constexpr std::array<std::string_view, 7> kExchanges = {
    "all_gather", "one_sided", "two_sided", "expert_major", "compact", "nccl", "fused"};

resolve::StrategyVerdict not_built(std::string_view strategy) {
  return {std::string(strategy), Reject::kPathNotEnabled,
          "not built in this version, which runs every layer on one rank"};
}

}  // namespace

std::string to_strategy(std::string_view name) {
  for (const resolve::Switch& row : resolve::switch_table())
    if (row.name == kCommSwitch) return row.canonical("communication strategy", name);
  throw InternalError(cat("the switch table has no ", kCommSwitch));
}

std::string pinned_strategy(const Environment& env, std::string_view comm) {
  std::string asked = comm.empty() ? "auto" : to_strategy(comm);
  std::string_view forced = env.flag(kCommSwitch);
  return forced.empty() || forced == "auto" ? asked : std::string(forced);
}

namespace api {

std::vector<resolve::StrategyVerdict> judge_strategies(const Deployment& deployment,
                                                       std::string_view comm) {
  std::string pinned = pinned_strategy(deployment.env, comm);
  if (pinned != "auto") return {not_built(pinned)};
  if (deployment.ranks() == 1) return {};
  if (!deployment.attention_dp()) return {not_built("all_reduce")};
  return judge_exchanges();
}

std::vector<resolve::StrategyVerdict> judge_exchanges() {
  std::vector<resolve::StrategyVerdict> out;
  for (std::string_view name : kExchanges) out.push_back(not_built(name));
  return out;
}

Eligibility can_build(const Problem& p, const Deployment& d) {
  if (d.ranks() > 1)
    return Eligibility::no(Reject::kPathNotEnabled,
                           cat("ep ", d.ep, " x tp ", d.tp, " = ", d.ranks(),
                               " ranks: exchange between ranks is not built, this version runs "
                               "every layer on one rank"));
  const std::int64_t slots = d.num_slots(p.num_experts());
  if (slots > p.num_experts())
    return Eligibility::no(Reject::kPathNotEnabled,
                           cat("slots = ", slots, " for ", p.num_experts(),
                               " experts: replicated experts are not built; use one slot for "
                               "each expert"));
  return Eligibility::yes();
}

leaves::Found ask_shared_leaf(const Problem& problem, std::string_view format,
                              const Deployment& d) {
  leaves::Found found = leaves::find_leaf(format, d.device);
  if (found.leaf == nullptr) return found;
  Problem p = problem;
  p.format = std::string(found.leaf->id.quant);
  p.inter = problem.shared_inter;
  p.latent = 0;  // it reads the hidden states
  p.routing.zero_experts = 0;
  found.verdict = found.leaf->can_implement(p, d);
  return found;
}

}  // namespace api
}  // namespace switchyard
