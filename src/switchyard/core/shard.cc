// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/shard.h"

#include <algorithm>

#include "switchyard/base/check.h"

namespace switchyard {

void Member::check(std::string_view what) const {
  require(size >= 1 && rank >= 0 && rank < size, what, ": rank ", rank, " of ", size,
          " ranks; a rank is 0 to size - 1");
}

std::int64_t tp_shard_width(std::int64_t inter, std::int64_t tp) {
  if (tp == 1) return inter;
  std::int64_t cut = (inter + tp - 1) / tp;
  return (cut + kShardMultiple - 1) / kShardMultiple * kShardMultiple;
}

Shard tp_shard(std::int64_t inter, std::int64_t tp, std::int64_t rank) {
  std::int64_t width = tp_shard_width(inter, tp), begin = std::min(rank * width, inter);
  return {begin, std::min(width, inter - begin)};
}

Shard ep_shard(std::int64_t slots, std::int64_t ep, std::int64_t rank) {
  std::int64_t share = slots / ep, larger = slots % ep;
  return {rank * share + std::min(rank, larger), share + (rank < larger ? 1 : 0)};
}

}  // namespace switchyard
