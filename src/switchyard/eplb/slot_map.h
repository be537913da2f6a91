// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::eplb {

/// 64 bits that depend on a token's hidden states alone: what its replicas are chosen by, so that
/// the choice is the same in every batch.
///
/// Shapes:  row: the first bytes of the token's row, in its dtype; at most kTokenKeyBytes are read.
std::uint64_t token_key(std::span<const std::byte> row);
/// Bytes of a row that token_key() looks at.
inline constexpr std::size_t kTokenKeyBytes = 64;

/// Which slots of one layer hold which expert, and which of them serves a choice. A plain value.
class SlotMap {
 public:
  /// Shapes:  slots [num_slots], each an expert id.
  /// Errors:  UsageError for an id out of range and an expert without a slot.
  SlotMap(std::span<const std::int32_t> slots, std::int64_t num_experts);

  /// Slots of all ranks.
  std::int64_t num_slots() const { return std::int64_t(experts_.size()); }
  /// Logical experts.
  std::int64_t num_experts() const { return std::int64_t(first_.size()) - 1; }
  /// The expert that stands in each slot.
  std::span<const std::int32_t> experts() const { return experts_; }
  /// The slots that hold `expert`, ascending.
  std::span<const std::int32_t> replicas(std::int64_t expert) const {
    const auto begin = std::size_t(first_[std::size_t(expert)]);
    return std::span(slots_).subspan(begin, std::size_t(first_[std::size_t(expert) + 1]) - begin);
  }
  /// The slot that serves `expert` for the token of that key. Replicas get equal shares of the
  /// keys, independently from expert to expert.
  std::int32_t slot_of(std::int32_t expert, std::uint64_t key) const;
  /// Replaces a token's expert ids by slots in place; -1 stays -1.
  void route(std::span<std::int32_t> ids, std::uint64_t key) const;

 private:
  std::vector<std::int32_t> experts_;  // [num_slots]
  std::vector<std::int32_t> first_;    // [num_experts + 1] into slots_
  std::vector<std::int32_t> slots_;    // [num_slots] by expert
};

}  // namespace switchyard::eplb
