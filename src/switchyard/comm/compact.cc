// SPDX-License-Identifier: Apache-2.0
// Strategy compact: ranks tell each other their counts first, so that received rows lie back to
// back.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kCompact};

std::unique_ptr<Exchange> make(Group& group, const ExchangeShape& shape,
                               const ExchangeOptions& options) {
  return std::make_unique<PushExchange>(group, shape, options, kRules);
}

}  // namespace

const Strategy& compact() {
  static constexpr Strategy kStrategy{.name = "compact",
                                      .contract = {RowLayout::kCompact, WeightsBy::kExperts},
                                      .can_implement = can_push,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
