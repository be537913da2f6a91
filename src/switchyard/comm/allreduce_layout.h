// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "switchyard/base/dtype.h"
#include "switchyard/comm/layout.h"

namespace switchyard::comm {

/// What a workspace is built for; equal on all ranks. A call may have other tokens, width and type
/// as long as allreduce_bank_bytes() of it is no larger.
struct AllReduceCapacity {
  std::int64_t ranks = 1, max_tokens = 0, hidden = 0;
  Dtype dtype = Dtype::kBf16;
  bool fp32_wire = false;

  /// Errors: UsageError with field, value and limit.
  void check() const;
};

/// Bytes of a contribution on the wire.
constexpr std::int64_t allreduce_payload_stride(const AllReduceCapacity& c) {
  return row_stride_of(c.hidden * (c.fp32_wire ? 4 : std::int64_t(size_of(c.dtype))));
}
/// Most bytes of what a row's owner hands on: residual and sum, or codes and scales.
constexpr std::int64_t allreduce_reduced_stride(const AllReduceCapacity& c) {
  return row_stride_of(std::max(2 * c.hidden * std::int64_t(size_of(c.dtype)), 2 * c.hidden + 4));
}
/// Rows that one rank owns at most.
constexpr std::int64_t allreduce_owned_rows(const AllReduceCapacity& c) {
  return (c.max_tokens + c.ranks - 1) / c.ranks;
}
/// Bytes that one call needs of one rank: its contributions, then the rows that it owns.
constexpr std::int64_t allreduce_bank_bytes(const AllReduceCapacity& c) {
  return c.max_tokens * allreduce_payload_stride(c) +
         allreduce_owned_rows(c) * allreduce_reduced_stride(c);
}

/// The words of a call that must be the same on all ranks, and the order of their names.
inline constexpr std::int64_t kAllReduceHeaderWords = 13;

/// Where everything lies in a rank's slice of symmetric memory.
///
/// A rank writes rows into its own slice and flags and headers into every slice, so that each polls
/// its own memory only. There are two banks, used in turn: a rank that writes into a bank again has
/// finished the call between, for which every peer's flag was needed, and a peer sets it after it
/// has finished the call that the bank held.
///
/// Units:   bytes from the slice's start, 64-bit.
struct AllReduceLayout {
  std::int64_t ranks = 0;
  std::int64_t flags = 0;    // Word [2 phases][ranks], one per line
  std::int64_t headers = 0;  // uint32 [2 banks][ranks][kAllReduceHeaderWords], one per line
  std::int64_t banks = 0;    // [2] of bank_stride
  std::int64_t bank_bytes = 0, bank_stride = 0;
  std::int64_t bytes = 0;  // of the slice

  /// Unwritten bytes behind each bank.
  static constexpr std::int64_t kGuardBytes = 64;
  /// Bytes that a flag or a header keeps to itself.
  static constexpr std::int64_t kLineBytes = ExchangeLayout::kLineBytes;
  static_assert(kAllReduceHeaderWords * 4 <= kLineBytes);

  constexpr std::int64_t flag(int phase, int source) const {
    return flags + (phase * ranks + source) * kLineBytes;
  }
  constexpr std::int64_t header(std::uint32_t sequence, int source) const {
    return headers + ((sequence & 1) * ranks + source) * kLineBytes;
  }
  constexpr std::int64_t bank(std::uint32_t sequence) const {
    return banks + (sequence & 1) * bank_stride;
  }
};

/// The layout for a capacity; one rank alone exchanges nothing and has empty banks.
constexpr AllReduceLayout make_allreduce_layout(const AllReduceCapacity& c) {
  AllReduceLayout l{.ranks = c.ranks};
  l.headers = 2 * c.ranks * l.kLineBytes;
  l.banks = l.headers + 2 * c.ranks * l.kLineBytes;
  l.bank_bytes = c.ranks == 1 ? 0 : allreduce_bank_bytes(c);
  l.bank_stride = (l.bank_bytes + l.kGuardBytes + l.kLineBytes - 1) / l.kLineBytes * l.kLineBytes;
  l.bytes = l.banks + 2 * l.bank_stride;
  return l;
}

/// Bytes of symmetric memory that a workspace takes on each rank.
constexpr std::int64_t allreduce_workspace_bytes(const AllReduceCapacity& c) {
  return make_allreduce_layout(c).bytes;
}

}  // namespace switchyard::comm
