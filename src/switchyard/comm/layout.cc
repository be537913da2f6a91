// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/layout.h"

#include <algorithm>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

constexpr std::byte kCanary{0xc5};
constexpr std::int64_t kAlign = 128;
constexpr std::int64_t kFifoDepth = 32;

/// Lays regions behind each other, each aligned and followed by a guard.
class Builder {
 public:
  explicit Builder(ExchangeLayout& out) : out_(out) {}
  std::int64_t region(std::int64_t bytes) {
    std::int64_t begin = (out_.bytes + kAlign - 1) / kAlign * kAlign;
    ensure(out_.num_guards < std::int64_t(out_.guards.size()), "a layout of too many regions");
    out_.guards[std::size_t(out_.num_guards++)] = begin + bytes;
    out_.bytes = begin + bytes + ExchangeLayout::kGuardBytes;
    return begin;
  }

 private:
  ExchangeLayout& out_;
};

void control_regions(ExchangeLayout& out, Builder& b) {
  out.flags = b.region(kNumFlags * out.ranks * ExchangeLayout::kLineBytes);
  out.bell = b.region(ExchangeLayout::kLineBytes);
  out.headers = b.region(2 * out.ranks * std::int64_t(sizeof(MessageHeader)));
  out.counts = b.region(2 * out.ranks * out.counts_per_source * 4);
  out.stats = b.region(2 * out.ranks * out.num_stats * 4);
}

ExchangeLayout start(const ExchangeShape& s) {
  ExchangeLayout out;
  out.ranks = s.ranks();
  out.num_stats = s.num_stats;
  out.row_stride = row_stride_of(s.row_bytes);
  out.scale_stride = row_stride_of(s.scale_bytes);
  out.share_stride = row_stride_of(s.share_bytes);
  out.ids_per_row = s.top_k;
  return out;
}

}  // namespace

ExchangeLayout make_push_layout(const ExchangeShape& s, RowLayout layout) {
  ExchangeLayout out = start(s);
  const std::int64_t slots_per_rank = (s.slots + s.ep - 1) / s.ep;
  out.rows = s.ranks() * s.capacity;
  if (layout == RowLayout::kExpertMajor) {
    out.rows *= slots_per_rank;
    out.ids_per_row = 1;
    out.counts_per_source = slots_per_rank;
  } else if (layout == RowLayout::kCompact) {
    out.counts_per_source = s.ranks();
  }
  Builder b(out);
  control_regions(out, b);
  out.hidden = b.region(out.rows * out.row_stride);
  out.scales = b.region(out.rows * out.scale_stride);
  out.ids = b.region(out.rows * out.ids_per_row * 4);
  out.weights = b.region(out.rows * out.ids_per_row * 4);
  out.shares = b.region(out.rows * out.share_stride);
  return out;
}

ExchangeLayout make_fifo_layout(const ExchangeShape& s) {
  ExchangeLayout out = start(s);
  Builder b(out);
  control_regions(out, b);
  const std::int64_t message = out.row_stride + out.scale_stride + 2 * row_stride_of(s.top_k * 4);
  out.fifo_depth = kFifoDepth;
  out.entry_stride = (std::max(message, out.share_stride) + 63) / 64 * 64;
  out.fifos = b.region(s.ranks() * out.fifo_depth * out.entry_stride);
  return out;
}

void fill_guards(const ExchangeLayout& layout, std::byte* slice) {
  for (std::int64_t i = 0; i < layout.num_guards; ++i)
    std::fill_n(slice + layout.guards[std::size_t(i)], ExchangeLayout::kGuardBytes, kCanary);
}

bool guards_intact(const ExchangeLayout& layout, const std::byte* slice) {
  for (std::int64_t i = 0; i < layout.num_guards; ++i) {
    const std::byte* guard = slice + layout.guards[std::size_t(i)];
    if (!std::all_of(guard, guard + ExchangeLayout::kGuardBytes,
                     [](std::byte b) { return b == kCanary; }))
      return false;
  }
  return true;
}

}  // namespace switchyard::comm
