// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/cycle.h"

#include "switchyard/base/check.h"

namespace switchyard::eplb {

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "idle";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kRouting:
      return "routing";
    case Phase::kCounted:
      return "counted";
    case Phase::kReleasing:
      return "releasing";
  }
  throw InternalError(cat("phase ", int(phase), " of a balancing cycle does not exist"));
}

void Cycle::refuse(std::string_view hook) const {
  throw InternalError(
      cat("balancing: ", hook, " is out of order in phase ", to_string(phase_), " after ", counts_,
          " counts and ", routes_,
          " routes; the order is start_wait, done_wait, count*, gathered?, route*, start_set, "
          "done_set"));
}

void Cycle::step(std::string_view hook, Phase from, Phase to) {
  if (phase_ != from) refuse(hook);
  phase_ = to;
  if (to == Phase::kIdle) counts_ = routes_ = 0;
}

void Cycle::count() {
  // A chunk's choices are counted before they are sent; gathered counts are final.
  if (phase_ != Phase::kRouting) refuse("count");
  ++counts_;
}

void Cycle::gathered() {
  if (phase_ != Phase::kRouting || counts_ == 0) refuse("gathered");
  phase_ = Phase::kCounted;
}

void Cycle::route() {
  if (phase_ != Phase::kRouting && phase_ != Phase::kCounted) refuse("route");
  ++routes_;
}

void Cycle::start_set() {
  if (phase_ != Phase::kRouting && phase_ != Phase::kCounted) refuse("start_set");
  phase_ = Phase::kReleasing;
}

void Cycle::check_idle(std::string_view what) const {
  if (phase_ != Phase::kIdle)
    throw InternalError(cat("balancing: ", what, " while a forward stands in phase ",
                            to_string(phase_), "; wait until it has ended"));
}

}  // namespace switchyard::eplb
