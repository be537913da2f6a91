// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/device_allreduce.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "switchyard/base/check.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/comm/allreduce_words.h"
#include "switchyard/comm/gathered.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceCall;
using ops::AllReduceStrategy;
using ops::AllReduceTrouble;

constexpr const char* kPhase = "creation of an allreduce workspace between GPUs";

ops::CallShape shape_of(const AllReduceCapacity& c) {
  return {c.max_tokens, c.hidden, c.dtype, AllReduceStrategy::kAuto, c.fp32_wire};
}

std::int64_t bank_bytes_of(const AllReduceCapacity& c) {
  return ops::exchange_bank_bytes(shape_of(c), c.ranks);
}

/// The largest latency and the smallest rate of all ranks.
AllReduceCost agreed(Group& group, const AllReduceCost& mine) {
  AllReduceCost out = mine;
  for (const AllReduceCost& theirs : gathered(group, mine, kPhase)) {
    out.latency_us = std::max(out.latency_us, theirs.latency_us);
    out.gbps = std::min(out.gbps, theirs.gbps);
  }
  return out;
}

}  // namespace

AllReduceStrategy cheaper_strategy(const ops::CallShape& s, std::int64_t ranks,
                                   const AllReduceCost& cost) {
  if (s.strategy != AllReduceStrategy::kAuto) return s.strategy;
  const double payload =
      double(s.tokens) * double(s.hidden) * double(s.fp32_wire ? 4 : size_of(s.dtype));
  // Two ranks send as much either way; of many rows an owner's norm of half of them tells.
  constexpr double kManyBytes = 2e6;
  if (ranks == 2 && payload > kManyBytes) return AllReduceStrategy::kTwoShot;
  if (ranks <= 2) return AllReduceStrategy::kOneShot;
  const double peers = double(ranks - 1), per_us = cost.gbps * 1e3;
  const double one = cost.latency_us + peers * payload / per_us;
  const double two = 2 * cost.latency_us + 2 * peers / double(ranks) * payload / per_us;
  return two < one ? AllReduceStrategy::kTwoShot : AllReduceStrategy::kOneShot;
}

std::int64_t device_allreduce_bytes(const AllReduceCapacity& c) {
  return ops::kExchangeHeaderBytes + ops::kAllReduceGenerations * bank_bytes_of(c);
}

DeviceAllReduce::DeviceAllReduce(Group& group, const AllReduceCapacity& capacity,
                                 const DeviceAllReduceOptions& options)
    : group_(group), capacity_(capacity), options_(options) {
  guarded(group, kPhase, [&] {
    capacity.check();
    require(capacity.ranks == group.size(), "allreduce workspace: ranks = ", capacity.ranks,
            " in a group of ", group.size());
    require(capacity.ranks <= ops::kMaxDeviceRanks, "allreduce workspace: ", capacity.ranks,
            " ranks on GPUs; the limit is ", ops::kMaxDeviceRanks);
    require(capacity.hidden <= ops::kMaxDeviceHidden,
            "allreduce workspace: hidden = ", capacity.hidden, " on GPUs; the limit is ",
            ops::kMaxDeviceHidden);
  });
  const Agreed mine[] = {{"max_tokens", cat(capacity.max_tokens)},
                         {"hidden", cat(capacity.hidden)},
                         {"dtype", std::string(to_string(capacity.dtype))},
                         {"fp32_wire", cat(int(capacity.fp32_wire))},
                         {"cost", options.cost ? "given" : "measured"}};
  agree(group, mine, kPhase);
  memory_.emplace(group, std::size_t(device_allreduce_bytes(capacity)));
  std::optional<DeviceStream> stream;
  guarded(group, kPhase, [&] {
    control_.emplace(sizeof(ops::AllReduceControl));
    const ops::AllReduceControl fresh;
    control_->upload(&fresh);
    status_.emplace(sizeof(ops::AllReduceStatus));
    stream.emplace();
    ops::empty_exchange_cuda(reinterpret_cast<std::uint32_t*>(memory_->slice(group.rank())),
                             std::int64_t(memory_->bytes() / 4), stream->get());
    stream->wait();
  });
  peers_ = {.rank = group.rank(),
            .ranks = group.size(),
            .bank_bytes = bank_bytes_of(capacity),
            .control = static_cast<ops::AllReduceControl*>(control_->data()),
            .status = static_cast<ops::AllReduceStatus*>(status_->device()),
            .pause_ns = std::uint64_t(options.pause.count())};
  for (int r = 0; r < group.size(); ++r) peers_.slices[r] = memory_->slice(r);
  // Settled above: nobody writes into memory that is still being emptied.
  if (options.cost) {
    cost_ = agreed(group, *options.cost);
  } else if (capacity.ranks > 2 && capacity.max_tokens > 0) {
    measure(stream->get());
  }
}

/// The latency is that of calls of one token; the rate that of the longest calls, less the latency.
void DeviceAllReduce::measure(Stream stream) {
  constexpr int kCalls = 16;
  constexpr std::int64_t kEnoughBytes = 16 << 20;
  const std::int64_t row = capacity_.hidden * std::int64_t(size_of(capacity_.dtype));
  const std::int64_t many = std::clamp<std::int64_t>(kEnoughBytes / row, 1, capacity_.max_tokens);
  std::optional<DeviceMemory> rows;
  guarded(group_, kPhase, [&] { rows.emplace(std::size_t(2 * many * row)); });
  auto microseconds = [&](std::int64_t tokens) {
    AllReduceCall call{{tokens, capacity_.hidden, capacity_.dtype, AllReduceStrategy::kOneShot,
                        capacity_.fp32_wire},
                       ops::PlainSource{rows->data()},
                       static_cast<std::byte*>(rows->data()) + many * row,
                       std::nullopt};
    for (int i = 0; i < 2; ++i) enqueue(call, stream);  // the first ones load the kernel
    wait(stream);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) enqueue(call, stream);
    wait(stream);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
               .count() /
           kCalls;
  };
  const double one = microseconds(1), all = microseconds(many);
  const double bytes = double(capacity_.ranks - 1) * double(many) * double(capacity_.hidden) *
                       double(capacity_.fp32_wire ? 4 : size_of(capacity_.dtype));
  cost_ = agreed(group_, {one, bytes / std::max(all - one, 0.1) * 1e-3});
}

AllReduceStrategy DeviceAllReduce::strategy(const ops::CallShape& shape) const {
  return cheaper_strategy(shape, group_.size(), cost_);
}

void DeviceAllReduce::run(const AllReduceCall& call, Stream stream) {
  check();
  auto work = [&] {
    call.check();
    const std::int64_t bytes = ops::exchange_bank_bytes(call.shape, group_.size()),
                       limit = peers_.bank_bytes;
    require(bytes <= limit, "allreduce of ", call.shape.tokens, " tokens x ", call.shape.hidden,
            " needs ", bytes, " bytes on each GPU; the workspace holds ", limit, " (",
            capacity_.max_tokens, " tokens x ", capacity_.hidden,
            "); split the batch or build a larger one");
    enqueue(call, stream);
  };
  group_.size() > 1 ? or_abort(group_, work) : work();
}

void DeviceAllReduce::enqueue(const AllReduceCall& call, Stream stream) {
  const AllReduceStrategy how = strategy(call.shape);
  ops::AllReducePeers peers = peers_;
  const AllReduceWords words = allreduce_words(call, how);
  std::copy(words.begin(), words.end(), peers.words);
  const auto budget = first_ ? group_.deadlines().warm_up : group_.deadlines().serving;
  peers.deadline_ns =
      std::uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(budget).count());
  ops::allreduce_norm_cuda(call, how, peers, options_.geometry, stream);
  first_ = false;
}

void DeviceAllReduce::wait(Stream stream) {
  wait_for(stream);
  check();
}

void DeviceAllReduce::check() {
  auto* status = static_cast<ops::AllReduceStatus*>(status_->host());
  const AllReduceTrouble trouble = std::atomic_ref(status->trouble).load(std::memory_order_acquire);
  if (trouble != AllReduceTrouble::kNone) raise(*status);
}

void DeviceAllReduce::raise(const ops::AllReduceStatus& s) {
  auto give_up = [&] {
    const int me = group_.rank();
    if (s.trouble == AllReduceTrouble::kCallsDiffer)
      throw UsageError(cat("allreduce: the ranks differ in call ", s.call, ": rank ", me, " has ",
                           kAllReduceWordNames[s.word], " = ", s.mine, ", rank ", s.peer, " has ",
                           s.theirs, "; call all ranks alike"));
    if (s.trouble == AllReduceTrouble::kBadRow)
      throw UsageError(cat("allreduce: entry ", s.token,
                           " of expanded_idx_to_permuted_idx on rank ", me, " is ",
                           std::int32_t(s.mine), "; legal are the rows given and -1"));
    const double seconds = double(group_.deadlines().serving.count()) * 1e-3;
    const std::string phase = s.word == 1 ? "allreduce owned rows" : "allreduce contributions";
    throw PeerError(cat("rank ", me, " waited ", seconds, " s on its GPU for rank ", s.peer, " in ",
                        phase, " (token ", s.token, " of call ", s.call,
                        "); see whether that rank runs, and form a new group"),
                    {me, s.peer, phase, seconds});
  };
  or_abort(group_, give_up);
  throw InternalError("an allreduce in trouble that is none");
}

void allreduce_fusion(DeviceAllReduce& workspace, const ops::AllReduceArgs& args, Stream stream) {
  workspace.run(args.call(), stream);
}
void allreduce_fusion(DeviceAllReduce& workspace, const ops::ARResidualRMSNormArgs& args,
                      Stream stream) {
  workspace.run(args.call(), stream);
}
void allreduce_fusion(DeviceAllReduce& workspace, const ops::MoEReductionArgs& args,
                      Stream stream) {
  workspace.run(args.call(), stream);
}
void allreduce_fusion(DeviceAllReduce& workspace, const ops::MoEFinalizeArgs& args, Stream stream) {
  workspace.run(args.call(), stream);
}

}  // namespace switchyard::comm
