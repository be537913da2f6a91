// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/factory.h"

#include <array>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

// By name, as the fused one, only: it replaces the leaf as well.
bool only_by_name(const Strategy& s) { return &s == &fused(); }

}  // namespace

std::span<const Strategy* const> strategies() {
  static const std::array<const Strategy*, 7> kTable = {
      &one_sided(), &two_sided(), &nccl(), &compact(), &expert_major(), &all_gather(), &fused()};
  return kTable;
}

const Strategy* find_strategy(std::string_view name) {
  for (const Strategy* s : strategies())
    if (s->name == name) return s;
  return nullptr;
}

Choice choose(const Problem& problem, const Deployment& deployment, std::string_view pin,
              std::span<const Strategy* const> table) {
  Choice out;
  out.pinned = pin != "auto";
  out.needed = out.pinned || deployment.attention_dp();
  if (!out.needed) return out;
  for (const Strategy* s : table) {
    if (out.pinned && s->name != pin) continue;
    Eligibility verdict = !out.pinned && only_by_name(*s)
                              ? Eligibility::no(Reject::kPathNotEnabled,
                                                "replaces the leaf too; only --comm fused asks it")
                              : s->can_implement(problem, deployment);
    if (verdict.eligible() && out.strategy == nullptr) out.strategy = s;
    out.verdicts.push_back({s, std::move(verdict)});
  }
  require(!out.pinned || !out.verdicts.empty(), "communication strategy '", pin, "' is unknown");
  return out;
}

std::unique_ptr<Exchange> make_exchange(const Strategy& strategy, Group& group,
                                        const ExchangeShape& s, const ExchangeOptions& options) {
  constexpr std::string_view kPhase = "creation of the exchange";
  const std::array<Agreed, 12> asked = {{{"strategy", std::string(strategy.name)},
                                         {"ep", cat(s.ep)},
                                         {"tp", cat(s.tp)},
                                         {"slots", cat(s.slots)},
                                         {"top_k", cat(s.top_k)},
                                         {"capacity", cat(s.capacity)},
                                         {"hidden", cat(s.hidden)},
                                         {"row_bytes", cat(s.row_bytes)},
                                         {"scale_bytes", cat(s.scale_bytes)},
                                         {"share_bytes", cat(s.share_bytes)},
                                         {"num_stats", cat(s.num_stats)},
                                         {"first_sequence", cat(options.first_sequence)}}};
  agree(group, asked, kPhase);
  guarded(group, kPhase, [&] {
    s.check();
    require(s.ranks() == group.size(), "ep = ", s.ep, " and tp = ", s.tp, " make ", s.ranks(),
            " ranks, the group has ", group.size());
    require(strategy.make != nullptr, "strategy ", strategy.name, " is not built in this version");
    require(s.tp == 1 || &strategy == &all_gather(), "strategy ", strategy.name,
            " serves no cut experts (tp = ", s.tp, "); use all_gather");
  });
  return strategy.make(group, s, options);
}

}  // namespace switchyard::comm
