// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/comm/factory.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/problem.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/report.h"

namespace switchyard::api {

/// What joins the ranks of a deployment.
struct Join {
  const comm::Strategy* strategy = nullptr;  // null under attention TP, on one rank, and for a no
  std::vector<resolve::StrategyVerdict> verdicts;  // empty: one rank, and nothing is pinned
  /// Whether the ranks can be joined; the verdicts say why not.
  bool ok() const;
};

/// Asks what would join the ranks of `deployment`: every exchange strategy under attention DP, the
/// all-reduce under attention TP, only the pinned one when `comm` names one, and none for one rank
/// that pins none.
Join judge_join(const Problem& problem, const Deployment& deployment, std::string_view comm);
/// Every strategy's verdict for a report: those of the join first, then, where a pin kept it short,
/// the others'. One that could serve says in its detail that it is chosen, or what stands before
/// it.
std::vector<resolve::StrategyVerdict> all_verdicts(const Problem& problem,
                                                   const Deployment& deployment, const Join& join);
/// What the caller asked for by an argument, and a switch has decided otherwise: a line for each.
/// Nothing where they agree, or no argument is given.
std::vector<std::string> overruled(const Environment& env, std::string_view comm,
                                   const std::optional<CombinePrecision>& combine);
/// The verdicts on every exchange strategy, for a small layer on two ranks of this machine.
std::vector<resolve::StrategyVerdict> judge_exchanges(const Environment& env);
/// Why the first of `verdicts`, none of which is a yes, keeps the ranks from being joined.
Eligibility missing_strategy(const std::vector<resolve::StrategyVerdict>& verdicts);

/// Whether this version can build what a leaf says yes to, its ranks joined by `join`.
Eligibility can_build(const Problem& problem, const Deployment& deployment, const Join& join);
/// The leaf that would run a shared expert of `format` beside `problem`, and its verdict.
leaves::Found ask_shared_leaf(const Problem& problem, std::string_view format,
                              const Deployment& deployment);

/// Whether the projections of a latent layer can be computed as they are stored.
Eligibility ask_latent(const checkpoint::LatentProjection& latent);

}  // namespace switchyard::api
