// SPDX-License-Identifier: Apache-2.0
// Strategy fused: a leaf of its own dispatches, computes and combines (layer/mega_moe.h); chosen
// only by name, and not an exchange that could be had without its experts.
#include "switchyard/comm/strategy.h"
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

}  // namespace

const Strategy& fused() {
  static constexpr Strategy kStrategy{.name = "fused",
                                      .contract = {RowLayout::kRankMajor, WeightsBy::kExperts},
                                      .can_implement = can_implement};
  return kStrategy;
}

}  // namespace switchyard::comm
