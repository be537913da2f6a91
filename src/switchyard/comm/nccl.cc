// SPDX-License-Identifier: Apache-2.0
// Strategy nccl: the exchange between GPUs of several hosts. Declared: its gate tells what it
// needs.
#include "switchyard/comm/strategy.h"

namespace switchyard::comm {
namespace {

Eligibility can_implement(const Problem&, const Deployment& d) {
  return first_reject({
      require_dispatch(d, false),
      d.env.has_dep("nccl") ? Eligibility::yes()
                            : Eligibility::no(Reject::kDepMissing,
                                              "NCCL is not in this build; pin another strategy, or "
                                              "none"),
      Eligibility::no(
          Reject::kPathNotEnabled,
          "the exchange through NCCL is not built in this version; pin another strategy, or none"),
  });
}

}  // namespace

const Strategy& nccl() {
  static constexpr Strategy kStrategy{.name = "nccl",
                                      .contract = {RowLayout::kRankMajor, WeightsBy::kExperts},
                                      .can_implement = can_implement};
  return kStrategy;
}

}  // namespace switchyard::comm
