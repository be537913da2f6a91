// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/exchange.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/shard.h"

namespace switchyard::comm {
namespace {

constexpr std::uint32_t kHeaderMagic = 0x53595848;
constexpr std::int64_t kMaxRows = std::int64_t(1) << 31;

/// FNV-1a over the words in front of the digest.
std::uint32_t digest_of(const MessageHeader& h) {
  constexpr std::uint32_t kBasis = 2166136261U, kPrime = 16777619U;
  std::uint32_t out = kBasis;
  for (std::uint32_t word :
       {h.magic, h.sequence, h.rows, h.row_bytes, h.scale_bytes, h.wire, h.has_stats, h.more})
    out = (out ^ word) * kPrime;
  return out;
}

void in_range(std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
  require(value >= least && value <= most, "exchange: ", name, " = ", value, " is outside ", least,
          "..", most);
}

}  // namespace

void ExchangeShape::check() const {
  in_range("ep", ep, 1, kMaxGroupRanks);
  in_range("tp", tp, 1, kMaxGroupRanks);
  in_range("ranks", ranks(), 1, kMaxGroupRanks);
  in_range("slots", slots, ep, kMaxSlots);
  in_range("top_k", top_k, 1, kMaxChoices);
  in_range("hidden", hidden, 1, kMaxWidth);
  in_range("row_bytes", row_bytes, 1, kMaxWidth * 4);
  in_range("scale_bytes", scale_bytes, 0, kMaxWidth * 4);
  in_range("share_bytes", share_bytes, 1, kMaxWidth * 4);
  in_range("num_stats", num_stats, 0, kMaxSlots);
  in_range("capacity", capacity, 1, (kMaxRows - 1) / (ranks() * ((slots + ep - 1) / ep)));
}

Exchange::Exchange(Group& group, const ExchangeShape& shape, const ExchangeOptions& options)
    : group_(group),
      shape_(shape),
      hook_(options.hook),
      sequence_(options.first_sequence),
      live_(options.live) {
  ensure(live_.empty() ? shape.ranks() == group.size()
                       : shape.tp == 1 && int(live_.size()) == group.size(),
         "an exchange of ", shape.ranks(), " ranks in a group of ", group.size());
  runs_.reserve(std::size_t(group.size() * ((shape.slots + shape.ep - 1) / shape.ep)));
  owners_.assign(std::size_t(shape.slots), -1);
  for (int r = 0; r < group.size(); r += int(shape.tp)) {
    const auto [begin, count] = slots_of(r);
    for (std::int64_t s = begin; s < begin + count; ++s) owners_[std::size_t(s)] = r;
  }
}

std::int64_t Exchange::ep_rank(int rank) const {
  return live_.empty() ? rank / shape_.tp : live_[std::size_t(rank)];
}

std::pair<std::int64_t, std::int64_t> Exchange::slots_of(int rank) const {
  Shard shard = ep_shard(shape_.slots, shape_.ep, ep_rank(rank));
  return {shard.begin, shard.size};
}

void Exchange::check(const DispatchArgs& args) const {
  const ExchangeShape& s = shape_;
  require(args.tokens >= 0 && args.tokens <= s.capacity, "dispatch of ", args.tokens,
          " tokens on rank ", group_.rank(), " exceeds the capacity ", s.capacity,
          "; split the batch or build the exchange for more");
  require(args.row_bytes >= 1 && args.row_bytes <= s.row_bytes, "dispatch of rows of ",
          args.row_bytes, " bytes; the exchange was built for 1..", s.row_bytes);
  require(args.scale_bytes >= 0 && args.scale_bytes <= s.scale_bytes, "dispatch of scales of ",
          args.scale_bytes, " bytes a row; the exchange was built for 0..", s.scale_bytes);
  std::int64_t share = wire_bytes(args.wire, s.hidden);
  require(share <= s.share_bytes, "a share in ", to_string(args.wire), " takes ", share,
          " bytes; the exchange was built for ", s.share_bytes);
  require(args.wire != Wire::kNvfp4 || s.hidden % 2 == 0, "hidden = ", s.hidden,
          " is odd; an nvfp4 share needs an even one (two codes share a byte)");
  require(args.stats == nullptr || s.num_stats > 0,
          "statistics are sent, but the exchange was built for none");
  if (args.tokens == 0) return;
  require(args.hidden != nullptr && args.ids != nullptr && args.weights != nullptr &&
              (args.scale_bytes == 0 || args.scales != nullptr),
          "dispatch: hidden, ids, weights or scales are null with ", args.tokens, " tokens");
  require(args.hidden_stride >= args.row_bytes && args.scale_stride >= args.scale_bytes,
          "dispatch: a stride is shorter than its row");
  for (std::int64_t i = 0; i < args.tokens * s.top_k; ++i) {
    std::int32_t id = args.ids[i];
    require(id >= -1 && id < s.slots, "dispatch on rank ", group_.rank(), ": choice ", i % s.top_k,
            " of token ", i / s.top_k, " has id ", id, "; legal are 0..", s.slots - 1,
            " and -1 (skip)");
  }
}

void Exchange::merge_segments(std::span<const Segment> segments) {
  runs_.clear();
  for (const Segment& s : segments) {
    if (runs_.empty() || runs_.back().first + runs_.back().rows != s.first ||
        runs_.back().rows + s.rows > shape_.capacity) {
      runs_.push_back(s);
      continue;
    }
    Segment& run = runs_.back();
    run.rows += s.rows;
    if (run.source != s.source) run.source = -1;
    if (run.slot != s.slot) run.slot = -1;
  }
}

Ticket Exchange::dispatch(const DispatchArgs& args) {
  Received received;
  or_abort(group_, [&] {
    group_.check_alive("dispatch");
    require(!dispatched_, "dispatch before the combine of the last one; combine its ticket first");
    check(args);
    ++sequence_;
    sent_ = args;
    more_ = false;
    received = do_dispatch(args);
    received.wire = args.wire;
    received.more = more_;
    merge_segments(received.segments);
    received.runs = runs_;
    if (!live_.empty())
      received.skipped_choices =
          std::count_if(args.ids, args.ids + args.tokens * shape_.top_k,
                        [&](std::int32_t id) { return id >= 0 && owners_[std::size_t(id)] < 0; });
    dispatched_ = true;
  });
  return {this, sequence_, received};
}

void Exchange::combine(Ticket ticket, const RowSink& sink) {
  or_abort(group_, [&] {
    require(ticket.owner_ == this && ticket.sequence_ == sequence_ && dispatched_,
            "combine with a ticket that is not of this exchange's last dispatch");
    ensure(sink.row != nullptr, "a combine without a sink");
    dispatched_ = false;
    do_combine(sink);
    first_ = false;
  });
}

Patience Exchange::patience(std::string_view phase) {
  return {group_, phase, first_ ? group_.deadlines().warm_up : group_.deadlines().serving};
}

void Exchange::fault(FaultPoint point, MessageHeader* header) {
  if (hook_.at != nullptr) hook_.at(hook_.context, point, header);
}

MessageHeader Exchange::make_header(const DispatchArgs& args, std::uint32_t rows) {
  MessageHeader h{.magic = kHeaderMagic,
                  .sequence = sequence_,
                  .rows = rows,
                  .row_bytes = std::uint32_t(args.row_bytes),
                  .scale_bytes = std::uint32_t(args.scale_bytes),
                  .wire = std::uint32_t(args.wire),
                  .has_stats = args.stats != nullptr ? 1U : 0U,
                  .more = args.more ? 1U : 0U};
  h.digest = digest_of(h);
  fault(FaultPoint::kHeader, &h);
  return h;
}

void Exchange::check_header(const MessageHeader& h, const DispatchArgs& args, int source) {
  if (h.magic != kHeaderMagic || h.digest != digest_of(h) || h.sequence != sequence_)
    throw PeerError(cat("rank ", group_.rank(), ": the header of rank ", source,
                        " in dispatch is damaged (sequence ", h.sequence, ", expected ", sequence_,
                        ", ", h.rows, " rows); form a new group"),
                    {group_.rank(), source, "dispatch", 0});
  auto same = [&](std::string_view name, std::uint32_t theirs, std::int64_t ours) {
    require(theirs == ours, "dispatch: the ranks differ: rank ", group_.rank(), " has ", name,
            " = ", ours, ", rank ", source, " has ", theirs, "; call all ranks alike");
  };
  same("row_bytes", h.row_bytes, args.row_bytes);
  same("scale_bytes", h.scale_bytes, args.scale_bytes);
  same("wire form", h.wire, std::int64_t(args.wire));
  same("statistics", h.has_stats, args.stats != nullptr ? 1 : 0);
  more_ = more_ || h.more != 0;
}

}  // namespace switchyard::comm
