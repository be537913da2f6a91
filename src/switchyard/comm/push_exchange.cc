// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/push_exchange.h"

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/core/gates.h"

namespace switchyard::comm {
namespace {

constexpr const char* kDispatch = "dispatch";
constexpr const char* kCombine = "combine";

std::int64_t targets_per_token(const ExchangeShape& s, const PushRules& rules) {
  if (rules.layout == RowLayout::kExpertMajor) return s.top_k;
  return std::min(s.ranks(), s.top_k * s.tp);
}

std::int64_t slots_per_rank(const ExchangeShape& s) { return (s.slots + s.ep - 1) / s.ep; }

}  // namespace

Eligibility can_push(const Problem& p, const Deployment& d) {
  return first_reject({
      require_dispatch(d, false),
      require_no_tp(d),
      require_ranks(d),
      require_slots(p, d),
      require_wire(p),
  });
}

PushExchange::PushExchange(Group& group, const ExchangeShape& shape, const ExchangeOptions& options,
                           const PushRules& rules)
    : Exchange(group, shape, options),
      rules_(rules),
      layout_(make_push_layout(shape, rules.layout)),
      memory_(group, std::size_t(layout_.bytes)),
      targets_(shape.capacity, targets_per_token(shape, rules), shape.ranks()),
      base_(std::size_t(shape.ranks())),
      from_(std::size_t(shape.ranks())),
      sum_(std::size_t(shape.hidden)) {
  const bool by_slot = rules.layout == RowLayout::kExpertMajor;
  counts_.resize(std::size_t(by_slot ? shape.slots : shape.ranks()));
  if (by_slot) weights_.resize(std::size_t(shape.capacity * shape.top_k));
  segments_.reserve(std::size_t(shape.ranks() * (by_slot ? slots_per_rank(shape) : 1)));
  fill_guards(layout_, memory_.slice(group.rank()));
  for (int f = 0; f < kNumFlags; ++f)
    for (int r = 0; r < group.size(); ++r)
      flag(group.rank(), Flag(f), r).store(sequence(), std::memory_order_relaxed);
  // Else a fast peer's first flag would be wiped out.
  group.barrier("creation of the exchange");
}

Word& PushExchange::flag(int rank, Flag f, int source) const {
  return *memory_.at<Word>(rank, layout_.flag(f, source));
}

const std::uint32_t* PushExchange::counts_from(int source) const {
  return memory_.at<std::uint32_t>(group().rank(), layout_.count(sequence(), source));
}

bool PushExchange::canaries_intact() const {
  return guards_intact(layout_, memory_.slice(group().rank()));
}

std::pair<std::size_t, std::size_t> PushExchange::memory_bytes() const {
  return {memory_.total_bytes(), targets_.bytes() + weights_.size() * 4};
}

void PushExchange::find_slots(const std::int32_t* ids, Target* out) {
  for (std::int64_t j = 0; j < shape().top_k; ++j) {
    out[j] = {};
    if (ids[j] < 0 || owners()[std::size_t(ids[j])] < 0) continue;
    const std::uint32_t n = counts_[std::size_t(ids[j])]++;
    require(n < shape().capacity, "dispatch: slot ", ids[j], " is chosen ", n + 1,
            " times by at most ", shape().capacity, " tokens; the ids of a token must be distinct");
    out[j] = {owners()[std::size_t(ids[j])], std::int32_t(n)};
  }
}

void PushExchange::find_targets(const DispatchArgs& args) {
  const std::int64_t k = shape().top_k;
  if (rules_.layout == RowLayout::kExpertMajor) {
    std::fill(counts_.begin(), counts_.end(), 0U);
    for (std::int64_t t = 0; t < args.tokens; ++t) find_slots(args.ids + t * k, targets_.of(t));
    if (args.tokens > 0) std::copy_n(args.weights, args.tokens * k, weights_.begin());
    return;
  }
  targets_.by_rank(args.tokens, args.ids, k, owners(), std::int32_t(shape().tp));
  for (std::size_t r = 0; r < counts_.size(); ++r)
    counts_[r] = std::uint32_t(rules_.to_everyone ? args.tokens : targets_.num_rows()[r]);
}

// Where the rows of each pair of ranks begin in the receiver's memory.
void PushExchange::find_bases() {
  const int me = group().rank(), ranks = group().size();
  for (int r = 0; r < ranks; ++r) {
    base_[std::size_t(r)] = me * shape().capacity;
    from_[std::size_t(r)] = r * shape().capacity;
  }
  if (rules_.layout != RowLayout::kCompact) return;
  for (int r = 0; r < ranks; ++r) {
    std::copy(counts_.begin(), counts_.end(),
              memory_.at<std::uint32_t>(r, layout_.count(sequence(), me)));
    publish(flag(r, Flag::kCounts, me), sequence());
  }
  Patience wait = patience(kDispatch);
  for (int s = 0; s < ranks; ++s) wait.until(flag(me, Flag::kCounts, s), sequence(), s);
  std::fill(base_.begin(), base_.end(), 0);
  std::int64_t next = 0;
  for (int s = 0; s < ranks; ++s) {
    for (int r = 0; r < ranks && s < me; ++r) base_[std::size_t(r)] += counts_from(s)[r];
    from_[std::size_t(s)] = next;
    next += counts_from(s)[me];
  }
  ensure(next <= layout_.rows, "the counts of a compact dispatch exceed its rows");
}

// Turns each target's number among my rows for its receiver into a row of the receiver's memory.
void PushExchange::settle_rows(const DispatchArgs& args) {
  const std::int64_t k = shape().top_k;
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    Target* to = targets_.of(t);
    for (std::int64_t i = 0; i < targets_.width(); ++i) {
      if (to[i].rank < 0) continue;
      if (rules_.layout == RowLayout::kExpertMajor) {
        const std::int64_t slot = args.ids[t * k + i] - slots_of(to[i].rank).first;
        to[i].row += std::int32_t((slot * group().size() + group().rank()) * shape().capacity);
      } else {
        const std::int64_t number = rules_.to_everyone ? t : to[i].row;
        to[i].row = std::int32_t(base_[std::size_t(to[i].rank)] + number);
      }
    }
  }
}

void PushExchange::push_row(const DispatchArgs& args, std::int64_t token, const Target& to,
                            std::int64_t choice) {
  std::byte* slice = memory_.slice(to.rank);
  const std::int64_t row = to.row, k = shape().top_k;
  std::memcpy(slice + layout_.hidden + row * layout_.row_stride,
              static_cast<const std::byte*>(args.hidden) + token * args.hidden_stride,
              std::size_t(args.row_bytes));
  if (args.scale_bytes > 0)
    std::memcpy(slice + layout_.scales + row * layout_.scale_stride,
                static_cast<const std::byte*>(args.scales) + token * args.scale_stride,
                std::size_t(args.scale_bytes));
  auto* ids = reinterpret_cast<std::int32_t*>(slice + layout_.ids) + row * layout_.ids_per_row;
  auto* weights = reinterpret_cast<float*>(slice + layout_.weights) + row * layout_.ids_per_row;
  const auto [first, count] = slots_of(to.rank);
  if (choice >= 0) {
    ids[0] = std::int32_t(args.ids[token * k + choice] - first);
    weights[0] = 1;  // the true one waits for the combine
    return;
  }
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t local = args.ids[token * k + j] - first;
    const bool there = args.ids[token * k + j] >= 0 && local >= 0 && local < count;
    ids[j] = there ? std::int32_t(local) : -1;
    weights[j] = there ? args.weights[token * k + j] : 0;
  }
}

void PushExchange::push_token(const DispatchArgs& args, std::int64_t token) {
  const Target* to = targets_.of(token);
  if (rules_.to_everyone) {
    for (int r = 0; r < group().size(); ++r)
      push_row(args, token, {r, std::int32_t(base_[std::size_t(r)] + token)}, -1);
    return;
  }
  const bool by_slot = rules_.layout == RowLayout::kExpertMajor;
  for (std::int64_t i = 0; i < targets_.width(); ++i)
    if (to[i].rank >= 0) push_row(args, token, to[i], by_slot ? i : -1);
}

void PushExchange::publish_data(const DispatchArgs& args) {
  const int me = group().rank();
  for (int r = 0; r < group().size(); ++r) {
    std::uint32_t rows = 0;
    if (rules_.layout == RowLayout::kExpertMajor) {
      const auto [first, count] = slots_of(r);
      std::uint32_t* there = memory_.at<std::uint32_t>(r, layout_.count(sequence(), me));
      for (std::int64_t s = 0; s < count; ++s) {
        there[s] = counts_[std::size_t(first + s)];
        rows += there[s];
      }
    } else {
      rows = counts_[std::size_t(r)];
    }
    if (args.stats != nullptr)
      std::memcpy(memory_.slice(r) + layout_.stat(sequence(), me), args.stats,
                  std::size_t(shape().num_stats) * 4);
    *memory_.at<MessageHeader>(r, layout_.header(sequence(), me)) = make_header(args, rows);
    publish(flag(r, Flag::kData, me), sequence());
  }
}

void PushExchange::add_segments(int source, const MessageHeader& header) {
  if (header.rows == 0) return;
  if (rules_.layout != RowLayout::kExpertMajor) {
    segments_.push_back(
        {.first = from_[std::size_t(source)], .rows = header.rows, .source = source});
    return;
  }
  const std::uint32_t* counts = counts_from(source);
  const std::int64_t block = shape().capacity;
  for (std::int64_t s = 0; s < slots_of(group().rank()).second; ++s)
    if (counts[s] > 0)
      segments_.push_back({.first = (s * group().size() + source) * block,
                           .rows = counts[s],
                           .source = source,
                           .slot = s});
}

void PushExchange::receive(const DispatchArgs& args) {
  const int me = group().rank();
  segments_.clear();
  Patience wait = patience(kDispatch);
  for (int s = 0; s < group().size(); ++s) {
    wait.until(flag(me, Flag::kData, s), sequence(), s);
    const MessageHeader header = *memory_.at<MessageHeader>(me, layout_.header(sequence(), s));
    check_header(header, args, s);
    add_segments(s, header);
  }
}

Received PushExchange::do_dispatch(const DispatchArgs& args) {
  find_targets(args);
  find_bases();
  settle_rows(args);
  fault(FaultPoint::kBeforeData);
  for (std::int64_t t = 0; t < args.tokens; ++t) push_token(args, t);
  fault(FaultPoint::kAfterData);
  publish_data(args);
  receive(args);

  std::byte* mine = memory_.slice(group().rank());
  Received out;
  out.segments = segments_;
  for (const Segment& s : segments_) out.num_rows += s.rows;
  out.hidden = mine + layout_.hidden;
  out.hidden_stride = layout_.row_stride;
  out.scales = mine + layout_.scales;
  out.scale_stride = layout_.scale_stride;
  out.ids = reinterpret_cast<const std::int32_t*>(mine + layout_.ids);
  out.weights = reinterpret_cast<const float*>(mine + layout_.weights);
  out.ids_per_row = layout_.ids_per_row;
  if (args.stats != nullptr)
    out.stats = reinterpret_cast<const std::int32_t*>(mine + layout_.stat(sequence(), 0));
  out.shares = mine + layout_.shares;
  out.share_stride = layout_.share_stride;
  return out;
}

void PushExchange::do_combine(const RowSink& sink) {
  const int me = group().rank();
  fault(FaultPoint::kBeforeShares);
  for (int r = 0; r < group().size(); ++r) publish(flag(r, Flag::kShares, me), sequence());
  fault(FaultPoint::kAfterShares);
  Patience wait = patience(kCombine);
  for (int s = 0; s < group().size(); ++s) wait.until(flag(me, Flag::kShares, s), sequence(), s);

  const std::int64_t k = shape().top_k;
  for (std::int64_t t = 0; t < sent().tokens; ++t) {
    std::fill(sum_.begin(), sum_.end(), 0.0F);
    const Target* to = targets_.of(t);
    for (std::int64_t i = 0; i < targets_.width(); ++i) {
      if (to[i].rank < 0) continue;
      const std::byte* share =
          memory_.slice(to[i].rank) + layout_.shares + to[i].row * layout_.share_stride;
      const float weight = weights_.empty() ? 1.0F : weights_[std::size_t(t * k + i)];
      add_row(sent().wire, share, weight, shape().hidden, sum_.data());
    }
    sink.row(sink.context, t, sum_.data());
  }
}

}  // namespace switchyard::comm
