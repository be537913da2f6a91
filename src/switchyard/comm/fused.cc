// SPDX-License-Identifier: Apache-2.0
// Strategy fused: a leaf of its own dispatches, computes and combines; chosen only by name.
#include "switchyard/comm/strategy.h"

namespace switchyard::comm {
namespace {

Eligibility can_implement(const Problem&, const Deployment& d) {
  return first_reject({
      require_dispatch(d, false),
      Eligibility::no(Reject::kPathNotEnabled,
                      "no leaf that exchanges tokens itself is built in this version"),
  });
}

}  // namespace

const Strategy& fused() {
  static constexpr Strategy kStrategy{.name = "fused",
                                      .contract = {RowLayout::kRankMajor, WeightsBy::kExperts},
                                      .can_implement = can_implement};
  return kStrategy;
}

}  // namespace switchyard::comm
