// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/deployment.h"

#include "switchyard/base/nearest.h"

namespace switchyard {

std::string_view to_string(Parallel p) {
  switch (p) {
    case Parallel::kDep:
      return "dep";
    case Parallel::kDtp:
      return "dtp";
    case Parallel::kTep:
      return "tep";
    case Parallel::kTtp:
      return "ttp";
  }
  throw InternalError(cat("parallel mode ", int(p), " has no text"));
}

Parallel to_parallel(std::string_view s) {
  return to_enum("parallel mode", s,
                 {Parallel::kDep, Parallel::kDtp, Parallel::kTep, Parallel::kTtp});
}

void Deployment::check() const {
  require(ep >= 1 && ep <= kMaxRanks, "ep = ", ep, " is out of range; use 1 to ", kMaxRanks);
  require(tp >= 1 && tp <= kMaxRanks, "tp = ", tp, " is out of range; use 1 to ", kMaxRanks);
  require(ranks() <= kMaxRanks, "ep ", ep, " x tp ", tp, " = ", ranks(),
          " ranks exceed the limit of ", kMaxRanks, "; lower ep or tp");
  require(slots >= 0 && slots <= kMaxSlots, "slots = ", slots, " is out of range; use 0 (one per ",
          "expert) to ", kMaxSlots);
}

}  // namespace switchyard
