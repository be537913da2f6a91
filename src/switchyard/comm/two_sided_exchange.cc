// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/two_sided_exchange.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

std::int64_t targets_per_token(const ExchangeShape& s) {
  return std::min(s.ranks(), s.top_k * s.tp);
}

}  // namespace

TwoSidedExchange::TwoSidedExchange(Group& group, const ExchangeShape& shape,
                                   const ExchangeOptions& options)
    : Exchange(group, shape, options),
      layout_(make_fifo_layout(shape)),
      memory_(group, std::size_t(layout_.bytes)),
      targets_(shape.capacity, targets_per_token(shape), shape.ranks()),
      tokens_for_(std::size_t(shape.ranks() * shape.capacity)),
      from_(std::size_t(shape.ranks())),
      heads_(std::size_t(shape.ranks()), options.first_sequence),
      tails_(std::size_t(shape.ranks()), options.first_sequence),
      progress_(std::size_t(shape.ranks())),
      sum_(std::size_t(shape.hidden)) {
  guarded(group, "allocation of receive buffers", [&] {
    const std::int64_t rows = shape.ranks() * shape.capacity;
    hidden_ = HostBuffer(std::size_t(rows * layout_.row_stride));
    scales_ = HostBuffer(std::size_t(rows * layout_.scale_stride));
    ids_ = HostBuffer(std::size_t(rows * shape.top_k * 4));
    weights_ = HostBuffer(std::size_t(rows * shape.top_k * 4));
    shares_ = HostBuffer(std::size_t(rows * layout_.share_stride));
    staged_ = HostBuffer(std::size_t(shape.capacity * targets_.width() * layout_.share_stride));
  });
  segments_.reserve(std::size_t(shape.ranks()));
  fill_guards(layout_, memory_.slice(group.rank()));
  for (int f = 0; f < kNumFlags; ++f)
    for (int r = 0; r < group.size(); ++r)
      flag(group.rank(), Flag(f), r).store(sequence(), std::memory_order_relaxed);
  group.barrier("creation of the exchange");
}

Word& TwoSidedExchange::flag(int rank, Flag f, int source) const {
  return *memory_.at<Word>(rank, layout_.flag(f, source));
}

void TwoSidedExchange::ring(int rank) const {
  Word& bell = *memory_.at<Word>(rank, layout_.bell);
  bell.fetch_add(1, std::memory_order_release);
  wake(bell);
}

bool TwoSidedExchange::canaries_intact() const {
  return guards_intact(layout_, memory_.slice(group().rank()));
}

std::pair<std::size_t, std::size_t> TwoSidedExchange::memory_bytes() const {
  std::size_t own = targets_.bytes() + tokens_for_.size() * sizeof(std::int32_t);
  for (const HostBuffer* b : {&hidden_, &scales_, &ids_, &weights_, &shares_, &staged_})
    own += b->bytes().size();
  return {memory_.total_bytes(), own};
}

// Message: hidden | scales | ids | weights, each on a 16-byte boundary.
void TwoSidedExchange::pack(std::int64_t token, int peer, std::byte* entry) const {
  const DispatchArgs& args = sent();
  const std::int64_t k = shape().top_k;
  std::memcpy(entry, static_cast<const std::byte*>(args.hidden) + token * args.hidden_stride,
              std::size_t(args.row_bytes));
  entry += layout_.row_stride;
  if (args.scale_bytes > 0)
    std::memcpy(entry, static_cast<const std::byte*>(args.scales) + token * args.scale_stride,
                std::size_t(args.scale_bytes));
  entry += layout_.scale_stride;
  auto* ids = reinterpret_cast<std::int32_t*>(entry);
  auto* weights = reinterpret_cast<float*>(entry + row_stride_of(k * 4));
  const auto [first, count] = slots_of(peer);
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t id = args.ids[token * k + j], local = id - first;
    const bool there = id >= 0 && local >= 0 && local < count;
    ids[j] = there ? std::int32_t(local) : -1;
    weights[j] = there ? args.weights[token * k + j] : 0;
  }
}

void TwoSidedExchange::unpack(std::int64_t row, const std::byte* entry) {
  const DispatchArgs& args = sent();
  const std::size_t bytes = std::size_t(shape().top_k) * 4;
  std::memcpy(hidden_.data() + row * layout_.row_stride, entry, std::size_t(args.row_bytes));
  entry += layout_.row_stride;
  if (args.scale_bytes > 0)
    std::memcpy(scales_.data() + row * layout_.scale_stride, entry, std::size_t(args.scale_bytes));
  entry += layout_.scale_stride;
  std::memcpy(ids_.data() + std::size_t(row) * bytes, entry, bytes);
  std::memcpy(weights_.data() + std::size_t(row) * bytes, entry + row_stride_of(shape().top_k * 4),
              bytes);
}

// Where the share belongs that a peer returns as its `number`th: beside its token's others.
std::byte* TwoSidedExchange::staged_share(int peer, std::int64_t number) {
  const std::int64_t token = tokens_for_[std::size_t(peer * shape().capacity + number)];
  const Target* to = targets_.of(token);
  std::int64_t i = 0;
  while (to[i].rank != peer) ++i;
  return staged_.data() + (token * targets_.width() + i) * layout_.share_stride;
}

bool TwoSidedExchange::send_some(Phase phase, int peer) {
  Progress& p = progress_[std::size_t(peer)];
  std::uint32_t& head = heads_[std::size_t(peer)];
  const int me = group().rank();
  const std::uint32_t tail = flag(me, Flag::kTail, peer).load(std::memory_order_acquire);
  const std::int64_t room = layout_.fifo_depth - std::int64_t(head - tail);
  const std::int64_t n = std::min(room, p.to_send - p.sent);
  if (n <= 0) return false;
  const std::size_t share_bytes = std::size_t(wire_bytes(sent().wire, shape().hidden));
  for (std::int64_t i = 0; i < n; ++i, ++head, ++p.sent) {
    std::byte* entry = memory_.slice(peer) + layout_.fifo_entry(me, head);
    if (phase == Phase::kDispatch) {
      pack(tokens_for_[std::size_t(peer * shape().capacity + p.sent)], peer, entry);
    } else {
      const std::int64_t row = from_[std::size_t(peer)] + p.sent;
      std::memcpy(entry, shares_.data() + row * layout_.share_stride, share_bytes);
    }
  }
  flag(peer, Flag::kHead, me).store(head, std::memory_order_release);
  ring(peer);
  return true;
}

bool TwoSidedExchange::receive_some(Phase phase, int peer) {
  Progress& p = progress_[std::size_t(peer)];
  std::uint32_t& tail = tails_[std::size_t(peer)];
  const int me = group().rank();
  const std::uint32_t head = flag(me, Flag::kHead, peer).load(std::memory_order_acquire);
  const std::int64_t n = std::min(std::int64_t(head - tail), p.to_receive - p.received);
  if (n <= 0) return false;
  const std::size_t share_bytes = std::size_t(wire_bytes(sent().wire, shape().hidden));
  for (std::int64_t i = 0; i < n; ++i, ++tail, ++p.received) {
    const std::byte* entry = memory_.slice(me) + layout_.fifo_entry(peer, tail);
    if (phase == Phase::kDispatch) {
      unpack(from_[std::size_t(peer)] + p.received, entry);
    } else {
      std::memcpy(staged_share(peer, p.received), entry, share_bytes);
    }
  }
  flag(peer, Flag::kTail, me).store(tail, std::memory_order_release);
  ring(peer);
  return true;
}

int TwoSidedExchange::first_unfinished() const {
  for (std::size_t r = 0; r < progress_.size(); ++r)
    if (progress_[r].received < progress_[r].to_receive) return int(r);
  for (std::size_t r = 0; r < progress_.size(); ++r)
    if (progress_[r].sent < progress_[r].to_send) return int(r);
  return -1;
}

void TwoSidedExchange::move_rows(Phase phase) {
  const std::string_view name = phase == Phase::kDispatch ? "dispatch" : "combine";
  const Word& bell = *memory_.at<Word>(group().rank(), layout_.bell);
  Patience wait = patience(name);
  for (;;) {
    const std::uint32_t seen = bell.load(std::memory_order_acquire);
    bool moved = false;
    for (int i = 0; i < group().size(); ++i) {
      // Every rank begins with its successor, so that not all fill the same FIFO at once.
      const int peer = (group().rank() + 1 + i) % group().size();
      moved = send_some(phase, peer) || moved;
      moved = receive_some(phase, peer) || moved;
    }
    const int left = first_unfinished();
    if (left < 0) return;
    if (moved) {
      wait = patience(name);  // the budget is for standing still
    } else {
      wait.pause(bell, seen, left);
    }
  }
}

void TwoSidedExchange::exchange_headers(const DispatchArgs& args) {
  const int me = group().rank();
  for (int r = 0; r < group().size(); ++r) {
    const std::int64_t rows = targets_.num_rows()[std::size_t(r)];
    if (args.stats != nullptr)
      std::memcpy(memory_.slice(r) + layout_.stat(sequence(), me), args.stats,
                  std::size_t(shape().num_stats) * 4);
    *memory_.at<MessageHeader>(r, layout_.header(sequence(), me)) =
        make_header(args, std::uint32_t(rows));
    publish(flag(r, Flag::kData, me), sequence());
    progress_[std::size_t(r)] = {.to_send = rows};
  }
  segments_.clear();
  std::int64_t next = 0;
  Patience wait = patience("dispatch");
  for (int s = 0; s < group().size(); ++s) {
    wait.until(flag(me, Flag::kData, s), sequence(), s);
    const MessageHeader header = *memory_.at<MessageHeader>(me, layout_.header(sequence(), s));
    check_header(header, args, s);
    from_[std::size_t(s)] = next;
    progress_[std::size_t(s)].to_receive = header.rows;
    if (header.rows > 0) segments_.push_back({.first = next, .rows = header.rows, .source = s});
    next += header.rows;
  }
  ensure(next <= shape().ranks() * shape().capacity, "the counts of a dispatch exceed its rows");
}

Received TwoSidedExchange::do_dispatch(const DispatchArgs& args) {
  targets_.by_rank(args.tokens, args.ids, shape().top_k, owners(), std::int32_t(shape().tp));
  for (std::int64_t t = 0; t < args.tokens; ++t)
    for (const Target* to = targets_.of(t); to < targets_.of(t) + targets_.width(); ++to)
      if (to->rank >= 0)
        tokens_for_[std::size_t(to->rank * shape().capacity + to->row)] = std::int32_t(t);
  fault(FaultPoint::kBeforeData);
  exchange_headers(args);
  move_rows(Phase::kDispatch);
  fault(FaultPoint::kAfterData);

  Received out;
  out.segments = segments_;
  for (const Segment& s : segments_) out.num_rows += s.rows;
  out.hidden = hidden_.data();
  out.hidden_stride = layout_.row_stride;
  out.scales = scales_.data();
  out.scale_stride = layout_.scale_stride;
  out.ids = reinterpret_cast<const std::int32_t*>(ids_.data());
  out.weights = reinterpret_cast<const float*>(weights_.data());
  out.ids_per_row = shape().top_k;
  if (args.stats != nullptr)
    out.stats = memory_.at<const std::int32_t>(group().rank(), layout_.stat(sequence(), 0));
  out.shares = shares_.data();
  out.share_stride = layout_.share_stride;
  return out;
}

void TwoSidedExchange::do_combine(const RowSink& sink) {
  fault(FaultPoint::kBeforeShares);
  // What came in goes back, what went out comes in.
  for (Progress& p : progress_) p = {.to_send = p.to_receive, .to_receive = p.to_send};
  move_rows(Phase::kCombine);
  fault(FaultPoint::kAfterShares);
  for (std::int64_t t = 0; t < sent().tokens; ++t) {
    std::fill(sum_.begin(), sum_.end(), 0.0F);
    const Target* to = targets_.of(t);
    for (std::int64_t i = 0; i < targets_.width() && to[i].rank >= 0; ++i)
      add_row(sent().wire, staged_.data() + (t * targets_.width() + i) * layout_.share_stride, 1,
              shape().hidden, sum_.data());
    sink.row(sink.context, t, sum_.data());
  }
}

}  // namespace switchyard::comm
