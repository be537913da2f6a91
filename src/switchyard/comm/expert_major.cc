// SPDX-License-Identifier: Apache-2.0
// Strategy expert_major: a token is written once for each of its choices, rows of one expert lie
// together, and the combine weighs and sums single experts' rows in choice order.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kExpertMajor};

// The experts of this contract see no weight: none can be on their input.
Eligibility require_weight_behind(const Problem& p) {
  if (p.routing.placement == WeightPlacement::kOutput) return Eligibility::yes();
  return Eligibility::no(Reject::kRoutingUnsupported,
                         "the routing weights are on the experts' input, and this strategy weighs "
                         "in the combine, behind them");
}

Eligibility can_implement(const Problem& p, const Deployment& d) {
  return first_reject({can_push(p, d), require_weight_behind(p)});
}

std::unique_ptr<Exchange> make(Group& group, const ExchangeShape& shape,
                               const ExchangeOptions& options) {
  return std::make_unique<PushExchange>(group, shape, options, kRules);
}

}  // namespace

const Strategy& expert_major() {
  static constexpr Strategy kStrategy{.name = "expert_major",
                                      .contract = {RowLayout::kExpertMajor, WeightsBy::kCombine},
                                      .can_implement = can_implement,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
