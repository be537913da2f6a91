// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/shared_ends.h"

#include "switchyard/base/check.h"

namespace switchyard::layer {

CallOrder::CallOrder(comm::Group& group) : group_(group), memory_(group, kSlots * sizeof(Shown)) {
  static_assert(Shown::is_always_lock_free, "processes share it by address");
}

CallOrder::Shown& CallOrder::shown(int rank, std::uint32_t call) const {
  return *memory_.at<Shown>(rank, std::int64_t(call % kSlots) * std::int64_t(sizeof(Shown)));
}

void CallOrder::begin(std::int64_t number) {
  ++call_;
  mine_ = (std::uint64_t(call_) << 32) | std::uint32_t(number);
  shown(group_.rank(), call_).store(mine_, std::memory_order_release);
}

void CallOrder::compare() const {
  for (int r = 0; r < group_.size(); ++r) {
    const std::uint64_t theirs = shown(r, call_).load(std::memory_order_acquire);
    require(theirs == mine_, "forward ", call_, " of the ranks' layers: rank ", group_.rank(),
            " calls layer ", std::uint32_t(mine_), ", rank ", r, " layer ", std::uint32_t(theirs),
            " (counted from 0 as they were built); call them in one order on all ranks");
  }
}

}  // namespace switchyard::layer
