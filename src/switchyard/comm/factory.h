// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/comm/strategy.h"

namespace switchyard::comm {

/// One strategy's answer.
struct Verdict {
  const Strategy* strategy = nullptr;
  Eligibility eligibility;
};

/// What is to join the ranks, and why nothing else. `strategy` is null where none is needed (one
/// rank, or attention TP) and where none can serve.
struct Choice {
  const Strategy* strategy = nullptr;
  bool needed = true;
  bool pinned = false;
  std::vector<Verdict> verdicts;  // auto: of every strategy, in order of preference; else the pin's
};

/// Every strategy in order of preference. `fused` is last: it is never chosen unless named.
std::span<const Strategy* const> strategies();
/// The strategy of that name; null when there is none.
const Strategy* find_strategy(std::string_view name);

/// Chooses by pure gates, the same on every rank and before anything is allocated.
///
/// Rules:   a pin is judged alone and never replaced, outside `dep` too. Without one, a layer of
///          one rank or under attention TP needs none; else the first of `table` that can serve.
/// Shapes:  pin is a canonical name, or "auto".
/// Errors:  UsageError for a pin that names no strategy of `table`.
Choice choose(const Problem& problem, const Deployment& deployment, std::string_view pin,
              std::span<const Strategy* const> table = strategies());

/// Builds this rank's end of `strategy`, after all ranks have shown that they ask for the same.
/// Collective. Errors: UsageError on every rank when the shape breaks a limit, the ranks differ
/// (both sides are printed) or memory is refused; PeerError when a rank does not come.
std::unique_ptr<Exchange> make_exchange(const Strategy& strategy, Group& group,
                                        const ExchangeShape& shape,
                                        const ExchangeOptions& options = {});

}  // namespace switchyard::comm
