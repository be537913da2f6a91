// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard {

/// A half-open range of columns or slots that one rank holds.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  bool operator==(const Shard&) const = default;
};

/// A rank's place in a group whose ranks divide something.
struct Member {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  bool operator==(const Member&) const = default;
  /// Checks 0 <= rank < size. Errors: UsageError that names `what`.
  void check(std::string_view what) const;
};

/// TP cuts are rounded up to multiples of this.
inline constexpr std::int64_t kShardMultiple = 32;

/// Width of every TP shard but the last ones, which are narrower or empty: inter / tp rounded up to
/// kShardMultiple; `inter` itself when tp is 1. Packing and oracle both read this function.
std::int64_t tp_shard_width(std::int64_t inter, std::int64_t tp);
/// The columns of `inter` that TP rank `rank` holds; size 0 when the cuts before it hold all.
Shard tp_shard(std::int64_t inter, std::int64_t tp, std::int64_t rank);
/// The slots that EP rank `rank` holds: floor or ceiling of slots / ep, the larger shares first.
Shard ep_shard(std::int64_t slots, std::int64_t ep, std::int64_t rank);

}  // namespace switchyard
