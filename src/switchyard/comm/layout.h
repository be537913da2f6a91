// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "switchyard/comm/exchange.h"

namespace switchyard::comm {

/// Every shared word's purpose; one word per source rank each, on a line of its own.
enum class Flag : std::uint8_t { kCounts, kData, kShares, kHead, kTail };
/// How many there are.
inline constexpr std::int64_t kNumFlags = 5;

/// Where everything lies in a rank's slice of symmetric memory: the only place that computes
/// offsets, all of them functions of what the exchange is built for and of nothing else. Regions
/// that a phase writes while another may still be read are disjoint, whatever a call sends.
///
/// Units:   bytes from the slice's start, 64-bit; rows in rows.
struct ExchangeLayout {
  std::int64_t flags = 0;    // Word [kNumFlags][ranks], one per line
  std::int64_t bell = 0;     // Word; any peer adds to it when a FIFO has moved
  std::int64_t headers = 0;  // MessageHeader [2 banks][ranks]
  std::int64_t counts = 0;   // uint32 [2 banks][ranks][counts_per_source]
  std::int64_t stats = 0;    // int32 [2 banks][ranks][num_stats]
  std::int64_t hidden = 0;   // [rows] of row_stride
  std::int64_t scales = 0;   // [rows] of scale_stride
  std::int64_t ids = 0;      // int32 [rows][ids_per_row]
  std::int64_t weights = 0;  // float [rows][ids_per_row]
  std::int64_t shares = 0;   // [rows] of share_stride
  std::int64_t fifos = 0;    // [ranks][fifo_depth] of entry_stride
  std::int64_t bytes = 0;    // of the slice

  std::int64_t ranks = 0, rows = 0, ids_per_row = 0, counts_per_source = 0, num_stats = 0;
  std::int64_t row_stride = 0, scale_stride = 0, share_stride = 0;
  std::int64_t fifo_depth = 0, entry_stride = 0;

  /// Unwritten bytes behind each region, filled with kCanary.
  static constexpr std::int64_t kGuardBytes = 64;
  /// Where the guards begin.
  std::array<std::int64_t, 12> guards{};
  std::int64_t num_guards = 0;

  std::int64_t flag(Flag f, int source) const {
    return flags + (std::int64_t(f) * ranks + source) * kLineBytes;
  }
  std::int64_t header(std::uint32_t sequence, int source) const {
    return headers + ((sequence & 1) * ranks + source) * std::int64_t(sizeof(MessageHeader));
  }
  std::int64_t count(std::uint32_t sequence, int source) const {
    return counts + ((sequence & 1) * ranks + source) * counts_per_source * 4;
  }
  std::int64_t stat(std::uint32_t sequence, int source) const {
    return stats + ((sequence & 1) * ranks + source) * num_stats * 4;
  }
  std::int64_t fifo_entry(int source, std::uint32_t number) const {
    return fifos + (source * fifo_depth + number % fifo_depth) * entry_stride;
  }

  /// Bytes that a flag keeps to itself.
  static constexpr std::int64_t kLineBytes = 64;
};

/// Fills the guards of a slice.
void fill_guards(const ExchangeLayout& layout, std::byte* slice);
/// Whether the guards of a slice are as fill_guards() left them.
bool guards_intact(const ExchangeLayout& layout, const std::byte* slice);

/// Slices into which senders push rows of `layout` directly.
ExchangeLayout make_push_layout(const ExchangeShape& shape, RowLayout layout);
/// Slices with one FIFO per sender, whose size does not depend on the number of tokens.
ExchangeLayout make_fifo_layout(const ExchangeShape& shape);

/// Bytes from row to row: `bytes` rounded up, so that each row starts on a 16-byte boundary.
constexpr std::int64_t row_stride_of(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace switchyard::comm
