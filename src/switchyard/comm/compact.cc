// SPDX-License-Identifier: Apache-2.0
// Strategy compact: ranks tell each other their counts first, so that received rows lie back to
// back.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/core/gates.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kCompact};

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

const Strategy& compact() {
  static constexpr Strategy kStrategy{.name = "compact",
                                      .contract = {RowLayout::kCompact, WeightsBy::kExperts},
                                      .can_implement = can_implement,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
