// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/strategies.h"

#include <algorithm>
#include <string>
#include <utility>

#include "switchyard/api/machine.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/reduction.h"
#include "switchyard/core/preset.h"
#include "switchyard/layer/rank_layer.h"
#include "switchyard/ops/projection/can_project.h"
#include "switchyard/resolve/switches.h"

namespace switchyard {
namespace {

constexpr std::string_view kCommSwitch = "SWITCHYARD_COMM",
                           kCombineSwitch = "SWITCHYARD_COMBINE_PRECISION";

resolve::StrategyVerdict to_verdict(std::string_view name, const Eligibility& e) {
  if (e.eligible()) return {std::string(name), {}, ""};
  return {std::string(name), e.reason(), e.detail()};
}

std::vector<resolve::StrategyVerdict> to_verdicts(const comm::Choice& choice) {
  std::vector<resolve::StrategyVerdict> out;
  for (const comm::Verdict& v : choice.verdicts)
    out.push_back(to_verdict(v.strategy->name, v.eligibility));
  return out;
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

bool Join::ok() const {
  return verdicts.empty() ||
         std::any_of(verdicts.begin(), verdicts.end(), [](const auto& v) { return !v.reason; });
}

Join judge_join(const Problem& problem, const Deployment& deployment, std::string_view comm) {
  const std::string pin = pinned_strategy(deployment.env, comm);
  const comm::Choice choice = comm::choose(problem, deployment, pin);
  if (choice.needed) {
    Join join{choice.strategy, to_verdicts(choice)};
    const std::string_view forced = deployment.env.flag(kCommSwitch);
    const bool by_switch = forced == pin && pin != "auto";
    for (resolve::StrategyVerdict& v : join.verdicts)
      if (by_switch && v.reason) v.detail += cat(" (", kCommSwitch, " pins it)");
    return join;
  }
  if (deployment.ranks() == 1) return {};
  return {nullptr, {to_verdict("all_reduce", comm::can_reduce(problem, deployment))}};
}

std::vector<resolve::StrategyVerdict> all_verdicts(const Problem& problem,
                                                   const Deployment& deployment, const Join& join) {
  std::vector<resolve::StrategyVerdict> out = join.verdicts;
  for (resolve::StrategyVerdict& v : to_verdicts(comm::choose(problem, deployment, "auto"))) {
    const bool known = std::any_of(out.begin(), out.end(),
                                   [&](const auto& o) { return o.strategy == v.strategy; });
    if (!known) out.push_back(std::move(v));
  }
  if (join.strategy == nullptr) return out;
  // Auto's verdicts are of all of them, a pin's of it alone.
  const std::string lost = join.verdicts.size() == 1
                               ? cat(join.strategy->name, " is pinned")
                               : cat("behind ", join.strategy->name, " in the order of preference");
  for (resolve::StrategyVerdict& v : out)
    if (!v.reason) v.detail = v.strategy == join.strategy->name ? "chosen" : lost;
  return out;
}

std::vector<std::string> overruled(const Environment& env, std::string_view comm,
                                   const std::optional<CombinePrecision>& combine) {
  std::vector<std::string> out;
  const std::string asked = comm.empty() ? "auto" : to_strategy(comm);
  if (const std::string pin = pinned_strategy(env, comm); !comm.empty() && pin != asked)
    out.push_back(cat("strategy ", asked, " was asked for, and ", kCommSwitch, " = ", pin,
                      " takes its place; unset the switch to have it"));
  const std::string_view all = env.flag(kCombineSwitch);
  if (combine && !all.empty() && all != "layer" && to_combine_precision(all) != *combine)
    out.push_back(cat("combine ", to_string(*combine), " was asked for, and ", kCombineSwitch,
                      " = ", all, " takes its place; unset the switch to have it"));
  return out;
}

std::vector<resolve::StrategyVerdict> judge_exchanges(const Environment& env) {
  Deployment two_ranks;
  two_ranks.ep = 2;
  two_ranks.parallel = Parallel::kDep;
  two_ranks.env = env;
  return to_verdicts(comm::choose(make_preset("tiny"), two_ranks, "auto"));
}

Eligibility missing_strategy(const std::vector<resolve::StrategyVerdict>& verdicts) {
  const resolve::StrategyVerdict& first = verdicts.front();
  return Eligibility::no(*first.reason,
                         cat("strategy ", first.strategy, " cannot serve",
                             verdicts.size() > 1 ? ", like every other: " : ": ", first.detail));
}

Eligibility can_build(const Problem& p, const Deployment& d, const Join& join) {
  if (!join.ok()) return missing_strategy(join.verdicts);
  return d.ranks() == 1 ? Eligibility::yes() : layer::can_spread(p, d);
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
  Deployment cut = d;  // where ranks reduce, each has columns of it
  if (d.parallel != Parallel::kDep && problem.latent == 0) cut.tp = d.ranks(), cut.ep = 1;
  cut.slots = 0;
  found.verdict = found.leaf->can_implement(p, cut);
  return found;
}

Eligibility ask_latent(const checkpoint::LatentProjection& latent) {
  for (const auto& [name, matrix] :
       {std::pair{"down", &latent.down}, std::pair{"up", &latent.up}}) {
    const Eligibility verdict = ops::can_project(matrix->layout);
    if (!verdict.eligible())
      return Eligibility::no(verdict.reason(),
                             cat("the latent ", name, "-projection: ", verdict.detail()));
  }
  return Eligibility::yes();
}

}  // namespace api
}  // namespace switchyard
