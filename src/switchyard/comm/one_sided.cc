// SPDX-License-Identifier: Apache-2.0
// Strategy one_sided: a token is written once into the memory of each rank that holds one of its
// experts; the combine reads the shares from there.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/core/gates.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kRankMajor};

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

const Strategy& one_sided() {
  static constexpr Strategy kStrategy{.name = "one_sided",
                                      .contract = {RowLayout::kRankMajor, WeightsBy::kExperts},
                                      .can_implement = can_implement,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
