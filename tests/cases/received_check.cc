// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/received_check.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/core/shard.h"

namespace switchyard::test {
namespace {

/// A row that must be there: token `token` of `source`, for its choice `choice` or, at -1, for all
/// of its choices.
struct Row {
  std::int64_t at;
  int source;
  std::int64_t token, choice;
};

/// Everything that one rank must find.
struct Expected {
  std::vector<comm::Segment> segments;
  std::vector<Row> rows;
};

bool is_local(const Shard& held, std::int32_t id) {
  return id >= held.begin && id < held.begin + held.size;
}

bool any_local(const ExchangeInput& in, const Shard& held, std::int64_t token) {
  for (std::int64_t j = 0; j < in.shape.top_k; ++j)
    if (is_local(held, in.ids[std::size_t(token * in.shape.top_k + j)])) return true;
  return false;
}

void expect_tokens(const ExchangeInput& in, const Shard& held, int source, std::int64_t base,
                   bool all, Expected& out) {
  std::int64_t n = 0;
  for (std::int64_t t = 0; t < in.tokens; ++t)
    if (all || any_local(in, held, t)) out.rows.push_back({base + n++, source, t, -1});
  if (n > 0) out.segments.push_back({.first = base, .rows = n, .source = source});
}

void expect_choices(const ExchangeInput& in, const Shard& held, int source, Expected& out) {
  const comm::ExchangeShape& s = in.shape;
  for (std::int64_t slot = 0; slot < held.size; ++slot) {
    const std::int64_t base = (slot * s.ranks() + source) * s.capacity;
    std::int64_t n = 0;
    for (std::int64_t t = 0; t < in.tokens; ++t)
      for (std::int64_t j = 0; j < s.top_k; ++j)
        if (in.ids[std::size_t(t * s.top_k + j)] == held.begin + slot)
          out.rows.push_back({base + n++, source, t, j});
    if (n > 0) out.segments.push_back({.first = base, .rows = n, .source = source, .slot = slot});
  }
}

Expected expect(const comm::Strategy& strategy, std::span<const ExchangeInput> inputs,
                const Shard& held) {
  Expected out;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    const std::int64_t block = std::int64_t(r) * inputs[r].shape.capacity;
    switch (strategy.contract.layout) {
      case comm::RowLayout::kRankMajor:
        expect_tokens(inputs[r], held, int(r), block, &strategy == &comm::all_gather(), out);
        break;
      case comm::RowLayout::kCompact:
        expect_tokens(inputs[r], held, int(r), std::int64_t(out.rows.size()), false, out);
        break;
      case comm::RowLayout::kExpertMajor:
        expect_choices(inputs[r], held, int(r), out);
        break;
    }
  }
  return out;
}

std::string segments_fault(const comm::Received& got, const Expected& want) {
  if (got.segments.size() != want.segments.size())
    return cat(got.segments.size(), " segments instead of ", want.segments.size());
  for (std::size_t i = 0; i < want.segments.size(); ++i) {
    const comm::Segment &g = got.segments[i], &w = want.segments[i];
    if (g.first != w.first || g.rows != w.rows || g.source != w.source || g.slot != w.slot)
      return cat("segment ", i, " is first ", g.first, " rows ", g.rows, " source ", g.source,
                 " slot ", g.slot, " instead of ", w.first, " ", w.rows, " ", w.source, " ",
                 w.slot);
  }
  if (got.num_rows != std::int64_t(want.rows.size()))
    return cat("num_rows = ", got.num_rows, " instead of ", want.rows.size());
  return {};
}

/// Runs hold the rows of the segments in their order; two that could be one are a fault.
std::string runs_fault(const comm::Received& got, std::int64_t capacity) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < got.runs.size(); ++i) {
    const comm::Segment& run = got.runs[i];
    std::int64_t at = run.first;
    const std::size_t from = next;
    for (; at < run.first + run.rows; ++next) {
      if (next == got.segments.size() || got.segments[next].first != at)
        return cat("run ", i, " holds other rows than the segments");
      at += got.segments[next].rows;
      if (run.source != -1 && run.source != got.segments[next].source)
        return cat("run ", i, " of ", run.source);
      if (run.slot != -1 && run.slot != got.segments[next].slot)
        return cat("run ", i, " for slot ", run.slot);
    }
    if (next - from == 1 && (run.source < 0 || run.slot != got.segments[from].slot))
      return cat("run ", i, " is one segment and does not say so");
    if (at != run.first + run.rows || run.rows > capacity)
      return cat("run ", i, " has ", run.rows, " rows");
    if (next < got.segments.size() && got.segments[next].first == at &&
        run.rows + got.segments[next].rows <= capacity)
      return cat("run ", i, " ends although the next segment would fit");
  }
  return next == got.segments.size() ? "" : "rows are in no run";
}

std::string head_fault(const comm::Received& got, const comm::Strategy& strategy,
                       std::span<const ExchangeInput> inputs, int rank) {
  const ExchangeInput& own = inputs[std::size_t(rank)];
  const bool by_choice = strategy.contract.layout == comm::RowLayout::kExpertMajor;
  if (got.ids_per_row != (by_choice ? 1 : own.shape.top_k))
    return cat("ids_per_row = ", got.ids_per_row);
  if (got.wire != own.wire) return cat("wire = ", to_string(got.wire));
  constexpr std::int64_t kAlign = 16;
  if (std::uintptr_t(got.hidden) % kAlign != 0 || got.hidden_stride % kAlign != 0 ||
      std::uintptr_t(got.shares) % kAlign != 0 || got.share_stride % kAlign != 0)
    return "hidden or shares are not on 16-byte boundaries";
  if (got.hidden_stride < own.shape.row_bytes || got.scale_stride < own.shape.scale_bytes ||
      got.share_stride < own.shape.share_bytes)
    return "a stride is shorter than its row";
  if (own.stats.empty() != (got.stats == nullptr)) return "statistics are there or not";
  for (std::size_t r = 0; r < inputs.size() && !own.stats.empty(); ++r)
    if (std::memcmp(got.stats + std::ptrdiff_t(r * own.stats.size()), inputs[r].stats.data(),
                    own.stats.size() * 4) != 0)
      return cat("statistics of rank ", r);
  return {};
}

std::string row_fault(const comm::Received& got, const Row& row, const ExchangeInput& in,
                      const Shard& held) {
  const comm::DispatchArgs args = in.args();
  if (std::memcmp(got.hidden + row.at * got.hidden_stride,
                  in.hidden.data() + row.token * args.hidden_stride,
                  std::size_t(in.payload.row_bytes)) != 0)
    return "hidden states differ";
  if (in.payload.scale_bytes > 0 && std::memcmp(got.scales + row.at * got.scale_stride,
                                                in.scales.data() + row.token * args.scale_stride,
                                                std::size_t(in.payload.scale_bytes)) != 0)
    return "scales differ";
  for (std::int64_t j = 0; j < got.ids_per_row; ++j) {
    const std::size_t from =
        std::size_t(row.token * in.shape.top_k + (row.choice < 0 ? j : row.choice));
    const bool local = is_local(held, in.ids[from]);
    const std::int32_t id = local ? in.ids[from] - std::int32_t(held.begin) : -1;
    const float weight = !local ? 0.0F : row.choice < 0 ? in.weights[from] : 1.0F;
    const std::int64_t at = row.at * got.ids_per_row + j;
    if (got.ids[at] != id) return cat("choice ", j, " has id ", got.ids[at], " instead of ", id);
    if (std::bit_cast<std::uint32_t>(got.weights[at]) != std::bit_cast<std::uint32_t>(weight))
      return cat("choice ", j, " has weight ", got.weights[at], " instead of ", weight);
  }
  return {};
}

}  // namespace

std::string received_fault(const comm::Received& got, const comm::Strategy& strategy,
                           std::span<const ExchangeInput> inputs, int rank) {
  const comm::ExchangeShape& s = inputs[std::size_t(rank)].shape;
  const Shard held = ep_shard(s.slots, s.ep, rank / s.tp);
  const Expected want = expect(strategy, inputs, held);
  if (std::string fault = head_fault(got, strategy, inputs, rank); !fault.empty()) return fault;
  if (std::string fault = segments_fault(got, want); !fault.empty()) return fault;
  if (std::string fault = runs_fault(got, s.capacity); !fault.empty()) return fault;
  for (const Row& row : want.rows) {
    std::string fault = row_fault(got, row, inputs[std::size_t(row.source)], held);
    if (!fault.empty())
      return cat("row ", row.at, " (token ", row.token, " of rank ", row.source, "): ", fault);
  }
  return {};
}

}  // namespace switchyard::test
