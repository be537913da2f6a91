// SPDX-License-Identifier: Apache-2.0
// Strategy expert_major: a token is written once for each of its choices, rows of one expert lie
// together, and the combine weighs and sums single experts' rows in choice order.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/core/gates.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kExpertMajor};

Eligibility can_implement(const Problem& p, const Deployment& d) {
  return first_reject({
      require_dispatch(d, false),
      require_no_tp(d),
      require_ranks(d),
      require_cpu_ranks(d),
      require_slots(p, d),
      require_wire(p),
  });
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
