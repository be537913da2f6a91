// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/factory.h"

#include <algorithm>
#include <array>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

std::string text_of(const std::vector<int>& live) {
  std::string out;
  for (int r : live) out += cat(out.empty() ? "" : ",", r);
  return out.empty() ? "all" : out;
}

/// A group of survivors: who of the shape's ranks takes part.
void check_live(const Strategy& strategy, const Group& group, const ExchangeShape& s,
                const std::vector<int>& live) {
  require(s.tp == 1, "strategy ", strategy.name,
          " cannot go on without some of its ranks when "
          "experts are cut (tp = ",
          s.tp, "): each rank holds a part of every one of its experts");
  require(int(live.size()) == group.size(), "live names ", live.size(), " ranks, the group has ",
          group.size());
  require(std::is_sorted(live.begin(), live.end()) && live.front() >= 0 && live.back() < s.ep &&
              std::adjacent_find(live.begin(), live.end()) == live.end(),
          "live = ", text_of(live), " is not ascending within 0..", s.ep - 1);
}

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
    Eligibility verdict =
        !out.pinned && only_by_name(*s)
            ? Eligibility::no(Reject::kPathNotEnabled,
                              "replaces the leaf too, so it is only chosen by its name")
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
  const std::array<Agreed, 13> asked = {{{"strategy", std::string(strategy.name)},
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
                                         {"first_sequence", cat(options.first_sequence)},
                                         {"live", text_of(options.live)}}};
  agree(group, asked, kPhase);
  guarded(group, kPhase, [&] {
    s.check();
    if (!options.live.empty()) check_live(strategy, group, s, options.live);
    require(!options.live.empty() || s.ranks() == group.size(), "ep = ", s.ep, " and tp = ", s.tp,
            " make ", s.ranks(), " ranks, the group has ", group.size());
    require(strategy.make != nullptr, "strategy ", strategy.name,
            &strategy == &fused() ? " is a leaf that exchanges tokens itself, not an exchange"
                                  : " is not built in this version");
    require(s.tp == 1 || &strategy == &all_gather(), "strategy ", strategy.name,
            " serves no cut experts (tp = ", s.tp, "); use all_gather");
  });
  return strategy.make(group, s, options);
}

}  // namespace switchyard::comm
