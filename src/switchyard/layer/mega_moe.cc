// SPDX-License-Identifier: Apache-2.0
#include "switchyard/layer/mega_moe.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/comm/layout.h"
#include "switchyard/core/identity.h"
#include "switchyard/core/shard.h"

namespace switchyard::layer {
namespace {

constexpr const char* kCreation = "creation of the fused exchange";
constexpr const char* kDispatch = "dispatch";
constexpr const char* kCombine = "combine";
constexpr std::int64_t kLine = comm::ExchangeLayout::kLineBytes;
constexpr std::int64_t kGuard = comm::ExchangeLayout::kGuardBytes;
constexpr std::byte kGuardByte{0xd9};

MegaShape agreed(comm::Group& group, const MegaShape& s) {
  const std::array<comm::Agreed, 9> asked = {{{"slots", cat(s.slots)},
                                              {"top_k", cat(s.top_k)},
                                              {"capacity", cat(s.capacity)},
                                              {"hidden", cat(s.hidden)},
                                              {"row_bytes", cat(s.row_bytes)},
                                              {"scale_bytes", cat(s.scale_bytes)},
                                              {"share_bytes", cat(s.share_bytes)},
                                              {"num_stats", cat(s.num_stats)},
                                              {"first_sequence", cat(s.first_sequence)}}};
  comm::agree(group, asked, kCreation);
  // The limits are those of every exchange.
  comm::ExchangeShape limits{.ep = group.size(), .slots = s.slots, .top_k = s.top_k};
  limits.capacity = s.capacity;
  limits.hidden = s.hidden;
  limits.row_bytes = s.row_bytes;
  limits.scale_bytes = s.scale_bytes;
  limits.share_bytes = s.share_bytes;
  limits.num_stats = s.num_stats;
  limits.check();
  return s;
}

}  // namespace

// A guard stands in front of every region and behind the last one.
MegaMoe::Layout MegaMoe::layout_of(const MegaShape& s, int ranks) {
  Layout l;
  l.row_stride = comm::row_stride_of(s.row_bytes);
  l.scale_stride = comm::row_stride_of(s.scale_bytes);
  l.share_stride = comm::row_stride_of(s.share_bytes);
  std::int64_t at = 0;
  auto place = [&](std::int64_t bytes) {
    const std::int64_t begin = at + kGuard;
    at = (begin + bytes + kLine - 1) / kLine * kLine;
    return begin;
  };
  l.flags = place(2 * kLine);
  l.header = place(kLine);
  l.bases = place(ranks * 8);
  l.stats = place(s.num_stats * 4);
  l.rows = place(l.row_stride * s.capacity);
  l.scales = place(l.scale_stride * s.capacity);
  l.ids = place(s.capacity * s.top_k * 4);
  l.weights = place(s.capacity * s.top_k * 4);
  l.bank_bytes = l.share_stride * s.capacity * ranks;
  l.shares = place(2 * l.bank_bytes);
  l.bytes = at + kGuard;
  return l;
}

std::vector<std::int64_t> MegaMoe::regions(const Layout& l) {
  return {l.flags,  l.header, l.bases,   l.stats,  l.rows,
          l.scales, l.ids,    l.weights, l.shares, l.bytes};
}

MegaMoe::MegaMoe(comm::Group& group, const MegaShape& shape, std::string_view format)
    : group_(group),
      shape_(agreed(group, shape)),
      id_(Identity4{"switchyard", "cpu", "mega_moe", format}.str()),
      layout_(layout_of(shape, group.size())),
      memory_(group, std::size_t(layout_.bytes)),
      targets_(shape.capacity, std::min<std::int64_t>(group.size(), shape.top_k), group.size()),
      owners_(std::size_t(shape.slots)),
      sequence_(shape.first_sequence),
      row_at_(std::size_t(shape.capacity)),
      scales_at_(std::size_t(shape.capacity)),
      ids_(std::size_t(shape.capacity * shape.top_k)),
      weights_(ids_.size()),
      sum_(std::size_t(shape.hidden)) {
  for (int r = 0; r < group.size(); ++r) {
    const Shard held = ep_shard(shape.slots, group.size(), r);
    std::fill_n(owners_.begin() + held.begin, held.size, r);
    if (r == group.rank()) first_slot_ = held.begin, num_slots_ = held.size;
  }
  for (std::int64_t region : regions(layout_))
    std::fill_n(at(group.rank(), region - kGuard), kGuard, kGuardByte);
  for (Step step : {Step::kData, Step::kShares})
    flag(group.rank(), step).store(sequence_, std::memory_order_relaxed);
  group.barrier(kCreation);
}

bool MegaMoe::canaries_intact() const {
  const std::vector<std::int64_t> all = regions(layout_);
  return std::all_of(all.begin(), all.end(), [&](std::int64_t region) {
    const std::byte* guard = at(group_.rank(), region - kGuard);
    return std::count(guard, guard + kGuard, kGuardByte) == kGuard;
  });
}

comm::Word& MegaMoe::flag(int rank, Step step) const {
  return *memory_.at<comm::Word>(rank, layout_.flags + std::int64_t(step) * kLine);
}

std::byte* MegaMoe::share(int rank, std::int64_t row) const {
  return at(rank,
            layout_.shares + (sequence_ & 1) * layout_.bank_bytes + row * layout_.share_stride);
}

const std::int32_t* MegaMoe::stats(int r) const {
  return header(r).has_stats != 0 ? memory_.at<const std::int32_t>(r, layout_.stats) : nullptr;
}

void MegaMoe::check(const MegaArgs& a) const {
  require(a.tokens >= 0 && a.tokens <= shape_.capacity, "dispatch of ", a.tokens,
          " tokens on rank ", group_.rank(), " exceeds the capacity ", shape_.capacity,
          "; split the batch or build the exchange for more");
  for (std::int64_t i = 0; i < a.tokens * shape_.top_k; ++i)
    require(a.ids[i] >= -1 && a.ids[i] < shape_.slots, "dispatch on rank ", group_.rank(),
            ": choice ", i % shape_.top_k, " of token ", i / shape_.top_k, " has id ", a.ids[i],
            "; legal are 0..", shape_.slots - 1, " and -1 (skip)");
}

void MegaMoe::show(const MegaArgs& a) {
  const int me = group_.rank();
  targets_.by_rank(a.tokens, a.ids, shape_.top_k, owners_, 1);
  if (a.tokens > 0) {
    const std::size_t list = std::size_t(a.tokens * shape_.top_k) * 4;
    std::memcpy(at(me, layout_.ids), a.ids, list);
    std::memcpy(at(me, layout_.weights), a.weights, list);
  }
  if (a.stats != nullptr)
    std::memcpy(at(me, layout_.stats), a.stats, std::size_t(shape_.num_stats) * 4);
  header(me) = {sequence_, std::uint32_t(a.wire), a.tokens, a.stats != nullptr};
  comm::publish(flag(me, Step::kData), sequence_);
}

void MegaMoe::wait_for(int rank, Step step, std::string_view phase) {
  comm::Patience wait(group_, phase,
                      first_ ? group_.deadlines().warm_up : group_.deadlines().serving);
  wait.until(flag(rank, step), sequence_, rank);
}

void MegaMoe::compare(int source) const {
  const Header& mine = header(group_.rank());
  const Header& other = header(source);
  if (other.sequence != sequence_ || other.tokens < 0 || other.tokens > shape_.capacity)
    throw comm::PeerError(cat("rank ", group_.rank(), ": the header of rank ", source,
                              " in dispatch is damaged (sequence ", other.sequence, ", expected ",
                              sequence_, ", ", other.tokens, " tokens); form a new group"),
                          {group_.rank(), source, kDispatch, 0});
  require(other.wire == mine.wire && other.has_stats == mine.has_stats,
          "dispatch: the ranks differ: rank ", group_.rank(), " has wire form = ", mine.wire,
          " and statistics = ", mine.has_stats, ", rank ", source, " has ", other.wire, " and ",
          other.has_stats, "; call all ranks alike");
}

/// Takes a token up into the batch, if one of its experts is here.
bool MegaMoe::add_row(int source, std::int64_t token) {
  const std::int64_t k = shape_.top_k;
  const auto* ids = memory_.at<const std::int32_t>(source, layout_.ids) + token * k;
  const auto* weights = memory_.at<const float>(source, layout_.weights) + token * k;
  std::int32_t* my_ids = ids_.data() + filled_ * k;
  float* my_weights = weights_.data() + filled_ * k;
  bool any = false;
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t local = ids[j] - first_slot_;
    const bool here = ids[j] >= 0 && local >= 0 && local < num_slots_;
    my_ids[j] = here ? std::int32_t(local) : -1;
    my_weights[j] = here ? weights[j] : 0;
    any = any || here;
  }
  if (!any) return false;
  row_at_[std::size_t(filled_)] = at(source, layout_.rows + token * layout_.row_stride);
  scales_at_[std::size_t(filled_)] = at(source, layout_.scales + token * layout_.scale_stride);
  ++filled_;
  return true;
}

void MegaMoe::run_batch(const BatchRunner& experts) {
  if (filled_ == 0) return;
  experts.run(experts.context, {.rows = filled_,
                                .hidden = row_at_.data(),
                                .scales = scales_at_.data(),
                                .ids = ids_.data(),
                                .weights = weights_.data(),
                                .shares = share(group_.rank(), begun_),
                                .share_stride = layout_.share_stride});
  begun_ += filled_;
  filled_ = 0;
}

void MegaMoe::run_source(int source, const BatchRunner& experts) {
  compare(source);
  memory_.at<std::int64_t>(group_.rank(), layout_.bases)[source] = begun_ + filled_;
  for (std::int64_t t = 0; t < header(source).tokens; ++t)
    if (add_row(source, t) && filled_ == shape_.capacity) run_batch(experts);
}

void MegaMoe::combine(const comm::RowSink& sink) {
  const Header& mine = header(group_.rank());
  for (int r = 0; r < group_.size(); ++r) wait_for(r, Step::kShares, kCombine);
  for (std::int64_t t = 0; t < mine.tokens; ++t) {
    std::fill(sum_.begin(), sum_.end(), 0.0F);
    const comm::Target* to = targets_.of(t);
    for (std::int64_t i = 0; i < targets_.width() && to[i].rank >= 0; ++i) {
      const std::int64_t base =
          memory_.at<const std::int64_t>(to[i].rank, layout_.bases)[group_.rank()];
      comm::add_row(comm::Wire(mine.wire), share(to[i].rank, base + to[i].row), 1, shape_.hidden,
                    sum_.data());
    }
    sink.row(sink.context, t, sum_.data());
  }
}

void MegaMoe::run(const MegaArgs& a, const BatchRunner& experts, const comm::RowSink& sink) {
  comm::or_abort(group_, [&] {
    group_.check_alive("the fused exchange");
    check(a);
    ++sequence_;
    show(a);
    filled_ = begun_ = 0;
    // This rank's own rows come first: the others' are on their way meanwhile.
    for (int i = 0; i < group_.size(); ++i) {
      const int source = (group_.rank() + i) % group_.size();
      wait_for(source, Step::kData, kDispatch);
      run_source(source, experts);
    }
    experts.counted(experts.context);
    run_batch(experts);
    comm::publish(flag(group_.rank(), Step::kShares), sequence_);
    combine(sink);
    first_ = false;
  });
}

}  // namespace switchyard::layer
