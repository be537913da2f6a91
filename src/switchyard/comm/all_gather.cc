// SPDX-License-Identifier: Apache-2.0
// Strategy all_gather: every rank gets every token, and sums what the others made of its own.
// The only one that serves cut experts (tp), and the one to compare the others with.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/core/gates.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kRankMajor, .to_everyone = true};

Eligibility can_implement(const Problem& p, const Deployment& d) {
  return first_reject({
      require_dispatch(d, true),
      require_ranks(d),
      require_slots(p, d),
      require_wire(p),
  });
}

std::unique_ptr<Exchange> make(Group& group, const ExchangeShape& shape,
                               const ExchangeOptions& options) {
  return std::make_unique<PushExchange>(group, shape, options, kRules);
}

}  // namespace

const Strategy& all_gather() {
  static constexpr Strategy kStrategy{.name = "all_gather",
                                      .contract = {RowLayout::kRankMajor, WeightsBy::kExperts},
                                      .can_implement = can_implement,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
