// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/reduction.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/comm/layout.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/core/gates.h"
#include "switchyard/ops/allreduce_norm/allreduce_norm.h"

namespace switchyard::comm {
namespace {

constexpr const char* kCreation = "creation of the reduction";
constexpr std::int64_t kLine = ExchangeLayout::kLineBytes, kGuard = ExchangeLayout::kGuardBytes;
constexpr std::byte kGuardByte{0xb7};

Eligibility require_gpus(const Deployment& d) {
  if (d.env.num_gpus >= d.ranks()) return Eligibility::yes();
  return Eligibility::no(Reject::kTopologyUnsupported,
                         cat(d.ranks(), " ranks take a GPU each, ", d.env.num_gpus,
                             d.env.num_gpus == 1 ? " is here" : " are here"));
}

void in_range(std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
  require(value >= least && value <= most, "reduction: ", name, " = ", value, " is outside ", least,
          "..", most);
}

}  // namespace

void ReductionShape::check() const {
  constexpr std::int64_t kMostRows = (std::int64_t(1) << 31) - 1;
  in_range("capacity", capacity, 1, kMostRows / kMaxGroupRanks);
  in_range("hidden", hidden, 1, kMaxWidth);
  in_range("share_bytes", share_bytes, 1, kMaxWidth * 4);
  if (!gathers) return;
  in_range("top_k", top_k, 1, kMaxChoices);
  in_range("row_bytes", row_bytes, 1, kMaxWidth * 4);
}

Eligibility can_reduce(const Problem& p, const Deployment& d) {
  if (d.device == Device::kCuda)
    return first_reject({can_reduce_between_gpus(p, d), require_gpus(d), require_slots(p, d)});
  return first_reject({require_ranks(d), require_slots(p, d), require_wire(p)});
}

Eligibility can_reduce_between_gpus(const Problem& p, const Deployment& d) {
  if (d.parallel != Parallel::kTep && d.parallel != Parallel::kTtp) return require_cpu_ranks(d);
  if (p.combine != CombinePrecision::kBf16)
    return Eligibility::no(
        Reject::kPathNotEnabled,
        cat("the combine is ", to_string(p.combine),
            ", and the all-reduce between GPUs sends the activation dtype; leave "
            "the combine's precision out"));
  if (d.num_slots(p.num_experts()) != p.num_experts())
    return Eligibility::no(Reject::kEplbUnsupported,
                           cat("slots = ", d.slots, " for ", p.num_experts(),
                               " experts; ranks on GPUs hold each expert once"));
  return ops::supports({.pattern = ops::AllReduceFusionPattern::kAllReduce,
                        .dtype = p.dtype,
                        .ranks = d.ranks(),
                        .hidden = p.hidden,
                        .device = Device::kCuda});
}

// A guard stands in front of every region and behind the last one.
Reduction::Layout Reduction::layout_of(const ReductionShape& s, int ranks) {
  Layout l;
  l.row_stride = s.gathers ? row_stride_of(s.row_bytes) : 0;
  l.share_stride = row_stride_of(s.share_bytes);
  l.bank_bytes = l.share_stride * s.capacity * (s.gathers ? ranks : 1);
  const std::int64_t list = s.gathers ? row_stride_of(s.capacity * s.top_k * 4) : 0;
  std::int64_t at = 0;
  auto place = [&](std::int64_t bytes) {
    const std::int64_t begin = at + kGuard;
    at = (begin + bytes + kLine - 1) / kLine * kLine;
    return begin;
  };
  l.flags = place(kSteps * kLine);
  l.headers = place(kBanks * kLine);
  l.hidden = place(l.row_stride * s.capacity);
  l.ids = place(list);
  l.weights = place(list);
  l.shares = place(kBanks * l.bank_bytes);
  l.bytes = at + kGuard;
  return l;
}

Reduction::Reduction(Group& group, const ReductionShape& shape)
    : group_(group),
      shape_([&] {
        const std::array<Agreed, 7> asked = {{{"gathers", cat(shape.gathers)},
                                              {"capacity", cat(shape.capacity)},
                                              {"top_k", cat(shape.top_k)},
                                              {"hidden", cat(shape.hidden)},
                                              {"row_bytes", cat(shape.row_bytes)},
                                              {"share_bytes", cat(shape.share_bytes)},
                                              {"first_sequence", cat(shape.first_sequence)}}};
        agree(group, asked, kCreation);
        shape.check();  // the same everywhere by now
        return shape;
      }()),
      layout_(layout_of(shape_, group.size())),
      memory_(group, std::size_t(layout_.bytes)),
      sequence_(shape.first_sequence),
      sum_(std::size_t(shape.hidden)) {
  std::byte* mine = memory_.slice(group.rank());
  for (std::int64_t region : {layout_.flags, layout_.headers, layout_.hidden, layout_.ids,
                              layout_.weights, layout_.shares, layout_.bytes})
    std::fill_n(mine + region - kGuard, kGuard, kGuardByte);
  for (Step step : {Step::kTokens, Step::kShares})
    flag(group.rank(), step).store(sequence_, std::memory_order_relaxed);
  group.barrier(kCreation);
}

bool Reduction::canaries_intact() const {
  const std::byte* mine = memory_.slice(group_.rank());
  for (std::int64_t region : {layout_.flags, layout_.headers, layout_.hidden, layout_.ids,
                              layout_.weights, layout_.shares, layout_.bytes})
    if (std::count(mine + region - kGuard, mine + region, kGuardByte) != kGuard) return false;
  return true;
}

Word& Reduction::flag(int rank, Step step) const {
  return *memory_.at<Word>(rank, layout_.flags + std::int64_t(step) * kLine);
}

Reduction::Header& Reduction::header(int rank) const {
  return *memory_.at<Header>(rank, layout_.headers + (sequence_ & 1) * kLine);
}

std::byte* Reduction::share(int rank, int block, std::int64_t token) const {
  return memory_.slice(rank) + layout_.shares + (sequence_ & 1) * layout_.bank_bytes +
         (block * shape_.capacity + token) * layout_.share_stride;
}

void Reduction::check(const ReductionArgs& a) const {
  require(!begun_, "reduction: begin before the last call's finish; finish it first");
  require(a.tokens >= 0 && a.tokens <= shape_.capacity, "reduction of ", a.tokens,
          " tokens on rank ", group_.rank(), " exceeds the capacity ", shape_.capacity,
          "; split the batch or build the reduction for more");
  const std::int64_t bytes = wire_bytes(a.wire, shape_.hidden);
  require(bytes <= shape_.share_bytes, "a share in ", to_string(a.wire), " takes ", bytes,
          " bytes; the reduction was built for ", shape_.share_bytes);
  require(a.wire != Wire::kNvfp4 || shape_.hidden % 2 == 0, "hidden = ", shape_.hidden,
          " is odd; an nvfp4 share needs an even one (two codes share a byte)");
  if (!shape_.gathers || a.tokens == 0) return;
  require(a.hidden != nullptr && a.ids != nullptr && a.weights != nullptr,
          "reduction: hidden, ids or weights are null with ", a.tokens, " tokens");
  require(a.hidden_stride >= shape_.row_bytes, "reduction: a stride of ", a.hidden_stride,
          " bytes is shorter than its row of ", shape_.row_bytes);
}

void Reduction::copy_tokens(const ReductionArgs& a) {
  std::byte* mine = memory_.slice(group_.rank());
  for (std::int64_t t = 0; t < a.tokens; ++t)
    std::memcpy(mine + layout_.hidden + t * layout_.row_stride,
                static_cast<const std::byte*>(a.hidden) + t * a.hidden_stride,
                std::size_t(shape_.row_bytes));
  const std::size_t list = std::size_t(a.tokens * shape_.top_k) * 4;
  if (list == 0) return;
  std::memcpy(mine + layout_.ids, a.ids, list);
  std::memcpy(mine + layout_.weights, a.weights, list);
}

void Reduction::meet(Step step, const char* phase) {
  publish(flag(group_.rank(), step), sequence_);
  Patience wait(group_, phase, first_ ? group_.deadlines().warm_up : group_.deadlines().serving);
  for (int r = 0; r < group_.size(); ++r) wait.until(flag(r, step), sequence_, r);
}

void Reduction::compare_headers() const {
  const Header& mine = header(group_.rank());
  for (int r = 0; r < group_.size(); ++r) {
    const Header& other = header(r);
    if (other.sequence != sequence_)
      throw PeerError(
          cat("rank ", group_.rank(), ": the header of rank ", r, " in a reduction is of call ",
              other.sequence, ", not ", sequence_, "; form a new group"),
          {group_.rank(), r, "reduction", 0});
    require(other.wire == mine.wire, "reduction: the ranks differ: rank ", group_.rank(),
            " has wire form = ", mine.wire, ", rank ", r, " has ", other.wire,
            "; call all ranks alike");
    require(shape_.gathers || (other.tokens == mine.tokens && other.factor == mine.factor),
            "reduction: under attention TP all ranks hold the same tokens, but rank ",
            group_.rank(), " has ", mine.tokens, " with factor ", mine.factor, ", rank ", r, " ",
            other.tokens, " with ", other.factor, "; call all ranks alike");
  }
}

void Reduction::begin(const ReductionArgs& a) {
  or_abort(group_, [&] {
    group_.check_alive("a reduction");
    check(a);
    ++sequence_;
    begun_ = true;
    header(group_.rank()) = {sequence_, std::uint32_t(a.wire), a.tokens, a.factor};
    if (!shape_.gathers) return;
    copy_tokens(a);
    meet(Step::kTokens, "all-gather");
    compare_headers();
  });
}

TokenBlock Reduction::block(int b) const {
  const int source = shape_.gathers ? b : group_.rank();
  const Header& of = header(source);
  TokenBlock out{.tokens = of.tokens, .factor = of.factor};
  out.shares = share(group_.rank(), b, 0);
  out.share_stride = layout_.share_stride;
  if (!shape_.gathers) return out;
  out.hidden = memory_.slice(source) + layout_.hidden;
  out.hidden_stride = layout_.row_stride;
  out.ids = memory_.at<const std::int32_t>(source, layout_.ids);
  out.weights = memory_.at<const float>(source, layout_.weights);
  return out;
}

void Reduction::finish(const RowSink& sink) {
  or_abort(group_, [&] {
    require(begun_, "reduction: finish without a begin");
    ensure(sink.row != nullptr, "a reduction without a sink");
    begun_ = false;
    meet(Step::kShares, shape_.gathers ? "reduce-scatter" : "all-reduce");
    if (!shape_.gathers) compare_headers();
    const Header& mine = header(group_.rank());
    const int block = shape_.gathers ? group_.rank() : 0;
    for (std::int64_t t = 0; t < mine.tokens; ++t) {
      std::fill(sum_.begin(), sum_.end(), 0.0F);
      for (int r = 0; r < group_.size(); ++r)
        add_row(Wire(mine.wire), share(r, block, t), 1, shape_.hidden, sum_.data());
      sink.row(sink.context, t, sum_.data());
    }
    first_ = false;
  });
}

}  // namespace switchyard::comm
