// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::comm {

/// Where a row of a token goes: row `row` of rank `rank`; rank -1 is no target.
struct Target {
  std::int32_t rank = -1;
  std::int32_t row = 0;
};

/// The targets of one rank's tokens. Sized once; filled in each dispatch and read again in the
/// combine, so that no index ever travels.
class Targets {
 public:
  /// For at most `capacity` tokens of `per_token` targets each, on `ranks` ranks.
  Targets(std::int64_t capacity, std::int64_t per_token, std::int64_t ranks)
      : width_(per_token),
        of_token_(std::size_t(capacity * per_token)),
        num_rows_(std::size_t(ranks)) {}

  /// Targets per token; a token's are in the order of its sum, those that are none come last (by
  /// rank) or anywhere (by choice).
  std::int64_t width() const { return width_; }
  /// The targets of `token`.
  Target* of(std::int64_t token) { return of_token_.data() + token * width_; }
  const Target* of(std::int64_t token) const { return of_token_.data() + token * width_; }
  /// Rows that each rank gets, as by_rank() counted them.
  std::span<const std::int64_t> num_rows() const { return num_rows_; }
  /// Bytes that it holds.
  std::size_t bytes() const { return of_token_.size() * sizeof(Target); }

  /// Each rank that holds a choice of a token becomes a target, once and in rank order; `row` is
  /// its number among the rows for that rank, in token order.
  ///
  /// Shapes:  ids [tokens, k], -1 or below owners.size(); owners [slots]: the first of the `tp`
  ///          ranks that hold the slot, or -1.
  void by_rank(std::int64_t tokens, const std::int32_t* ids, std::int64_t k,
               std::span<const std::int32_t> owners, std::int32_t tp);

 private:
  std::int64_t width_;
  std::vector<Target> of_token_;
  std::vector<std::int64_t> num_rows_;
};

}  // namespace switchyard::comm
