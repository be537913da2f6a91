// SPDX-License-Identifier: Apache-2.0
#include "cli/tactic_json.h"

#include <algorithm>

#include "switchyard/base/text.h"

namespace switchyard::cli {

Json tactic_json(const Tactic& tactic) {
  Json out = Json::object();
  std::visit(
      [&](const auto& t) { t.each([&](const char* name, auto member) { out[name] = t.*member; }); },
      tactic);
  return out;
}

Json tactics_json(const std::vector<CallTactic>& tactics) {
  Json out = Json::array();
  for (const CallTactic& t : tactics)
    out.push_back({{"call", t.call},
                   {"tactic", tactic_json(t.use.tactic)},
                   {"chosen_by", to_string(t.use.origin)}});
  return out;
}

Json routing_launch_json(const RoutingLaunchReport& report) {
  return {{"together", report.together}, {"reason", report.reason}, {"text", report.text}};
}

std::string tactics_text(const std::vector<CallTactic>& tactics) {
  std::string out;
  for (const CallTactic& t : tactics)
    out += cat(out.empty() ? "" : "; ", t.call, " ", to_string(t.use));
  return out;
}

bool tuned(const std::vector<CallTactic>& tactics) {
  return std::any_of(tactics.begin(), tactics.end(),
                     [](const CallTactic& t) { return t.use.origin != TacticOrigin::kPlanner; });
}

}  // namespace switchyard::cli
