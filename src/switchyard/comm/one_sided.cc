// SPDX-License-Identifier: Apache-2.0
// Strategy one_sided: a token is written once into the memory of each rank that holds one of its
// experts; the combine reads the shares from there.
#include "switchyard/comm/push_exchange.h"
#include "switchyard/comm/strategy.h"

namespace switchyard::comm {
namespace {

constexpr PushRules kRules{.layout = RowLayout::kRankMajor};

std::unique_ptr<Exchange> make(Group& group, const ExchangeShape& shape,
                               const ExchangeOptions& options) {
  return std::make_unique<PushExchange>(group, shape, options, kRules);
}

}  // namespace

const Strategy& one_sided() {
  static constexpr Strategy kStrategy{.name = "one_sided",
                                      .contract = {RowLayout::kRankMajor, WeightsBy::kExperts},
                                      .can_implement = can_push,
                                      .make = make};
  return kStrategy;
}

}  // namespace switchyard::comm
