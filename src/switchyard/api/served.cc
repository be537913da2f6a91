// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/served.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/resolver.h"
#include "switchyard/resolve/warnings.h"

namespace switchyard::api {
namespace {

std::string withdrawn(std::string_view detail) { return cat("the leaf could serve, but ", detail); }

Served ask(const Problem& problem, const Deployment& deployment, const resolve::Request& request,
           std::string_view comm) {
  Served out{resolve::resolve(problem, deployment, request), {}};
  Problem spread = out.report.problem;
  spread.combine = resolve::asked_combine(spread, deployment);
  Deployment placed = deployment;  // a preference may have chosen another device
  if (!out.report.winner.empty())
    placed.device = leaves::find_leaf_by_id(out.report.winner)->device;
  out.join = judge_join(spread, placed, comm);
  out.report.strategies = all_verdicts(spread, placed, out.join);
  out.built = can_build(spread, placed, out.join);
  return out;
}

/// What the others are, after a preferred leaf whose ranks cannot be joined.
void degrade(Served& to, const Served& from) {
  resolve::Report& r = to.report;
  const std::string why = withdrawn(from.built.detail());
  r.requested = from.report.requested;
  r.degraded = true;
  r.degraded_from = from.report.winner;
  const Device given_up = leaves::find_leaf_by_id(from.report.winner)->device;
  std::erase_if(r.eligible, [&](const std::string& leaf) {
    const bool gone = leaves::find_leaf_by_id(leaf)->device == given_up;
    if (gone) r.rejected.insert(r.rejected.begin(), {leaf, from.built.reason(), why});
    return gone;
  });
  r.warnings.push_back(cat("preference ", r.requested.prefer, " cannot be kept: ", r.degraded_from,
                           "=", to_string(from.built.reason()), " (", why, "); running ",
                           r.winner));
  resolve::warn(r.warnings.back());
}

}  // namespace

Served ask_served(const Problem& problem, const Deployment& deployment,
                  const resolve::Request& request, std::string_view comm) {
  Served first = ask(problem, deployment, request, comm);
  if (first.report.selected_by != SelectedBy::kPreferred || first.built.eligible()) return first;
  resolve::Request open = request;
  open.prefer.clear();
  Served second = ask(problem, deployment, open, comm);
  if (second.report.winner.empty() || !second.built.eligible()) return first;
  degrade(second, first);
  return second;
}

void withdraw_winner(resolve::Report& r, Reject reason, std::string_view detail) {
  std::vector<resolve::Rejection> all;
  for (const std::string& leaf : r.eligible) all.push_back({leaf, reason, withdrawn(detail)});
  r.rejected.insert(r.rejected.begin(), all.begin(), all.end());
  r.eligible.clear();
  r.winner.clear();
  r.selected_by = SelectedBy::kFailed;
  r.degraded = false;
  r.degraded_from.clear();
  r.knobs.clear();
}

}  // namespace switchyard::api
