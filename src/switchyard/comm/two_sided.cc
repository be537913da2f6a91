// SPDX-License-Identifier: Apache-2.0
// Strategy two_sided: rows pass through FIFOs whose size does not depend on the number of tokens.
#include "switchyard/comm/strategy.h"
#include "switchyard/comm/two_sided_exchange.h"
#include "switchyard/core/gates.h"

namespace switchyard::comm {
namespace {

Eligibility can_implement(const Problem& p, const Deployment& d) {
  return first_reject({
      require_dispatch(d, false),
      require_no_tp(d),
      require_ranks(d),
      require_slots(p, d),
      require_wire(p),
  });
}

std::unique_ptr<Exchange> make(Group& group, const ExchangeShape& shape,
                               const ExchangeOptions& options) {
  return std::make_unique<TwoSidedExchange>(group, shape, options);
}

}  // namespace

const Strategy& two_sided() {
  static constexpr Strategy kStrategy{.name = "two_sided",
                                      .contract = {RowLayout::kCompact, WeightsBy::kExperts},
                                      .can_implement = can_implement,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
