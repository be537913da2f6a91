// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/rank_steps.h"

#include "switchyard/base/check.h"

namespace switchyard::layer {

std::string_view to_string(RankStep step) {
  switch (step) {
    case RankStep::kStartWait:
      return "start_wait";
    case RankStep::kRoute:
      return "route";
    case RankStep::kDoneWait:
      return "done_wait";
    case RankStep::kCount:
      return "count";
    case RankStep::kPlace:
      return "place";
    case RankStep::kShared:
      return "shared";
    case RankStep::kQuantise:
      return "quantise";
    case RankStep::kDispatch:
      return "dispatch";
    case RankStep::kGather:
      return "gather";
    case RankStep::kExperts:
      return "experts";
    case RankStep::kStartSet:
      return "start_set";
    case RankStep::kCombine:
      return "combine";
    case RankStep::kDoneSet:
      return "done_set";
  }
  throw InternalError(cat("step ", int(step), " of a rank does not exist"));
}

}  // namespace switchyard::layer
