// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/device_allreduce.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

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
constexpr const char* kCalls = "allreduce between GPUs";

ops::CallShape shape_of(const AllReduceCapacity& c) {
  return {c.max_tokens, c.hidden, c.dtype, AllReduceStrategy::kAuto, c.fp32_wire};
}

std::int64_t bank_bytes_of(const AllReduceCapacity& c) {
  return ops::exchange_bank_bytes(shape_of(c), c.ranks);
}

std::uint64_t nanoseconds(std::chrono::nanoseconds t) { return std::uint64_t(t.count()); }

/// Throws what the group was aborted with.
[[noreturn]] void throw_abort(Group& group) {
  const Word none{0};
  Patience abort(group, kCalls, std::chrono::seconds(1));
  for (;;) abort.pause(none, 0, group.rank());  // once more while the text is being written
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
                         {"cost", options.cost ? "given" : "measured"},
                         {"shared_device", cat(int(options.shared_device))}};
  agree(group, mine, kPhase);
  memory_.emplace(group, std::size_t(device_allreduce_bytes(capacity)));
  options_.geometry.sharers = memory_->ranks_per_gpu();
  std::optional<DeviceStream> stream;
  guarded(group, kPhase, [&] {
    require(options.shared_device || memory_->ranks_per_gpu() == 1,
            "allreduce workspace: ", memory_->ranks_per_gpu(),
            " ranks share a GPU; choose one for each rank (or ask for shared_device, for tests)");
    control_.emplace(sizeof(ops::AllReduceControl));
    const ops::AllReduceControl fresh{.warm_up_ns = nanoseconds(group.deadlines().warm_up),
                                      .serving_ns = nanoseconds(group.deadlines().serving)};
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

ops::AllReduceStatus& DeviceAllReduce::status() const {
  return *static_cast<ops::AllReduceStatus*>(status_->host());
}

/// Runs `work`; what it throws is the first trouble. One rank alone may go on.
template <class F>
void DeviceAllReduce::or_dead(F&& work) {
  if (group_.size() == 1) return work();
  try {
    or_abort(group_, work);
  } catch (...) {
    trouble_ = std::current_exception();
    heed_abort();
    throw;
  }
}

void DeviceAllReduce::run(const AllReduceCall& call, Stream stream) {
  check();
  or_dead([&] {
    call.check();
    const std::int64_t bytes = ops::exchange_bank_bytes(call.shape, group_.size()),
                       limit = peers_.bank_bytes;
    require(bytes <= limit, "allreduce of ", call.shape.tokens, " tokens x ", call.shape.hidden,
            " needs ", bytes, " bytes on each GPU; the workspace holds ", limit, " (",
            capacity_.max_tokens, " tokens x ", capacity_.hidden,
            "); split the batch or build a larger one");
    enqueue(call, stream);
  });
}

void DeviceAllReduce::enqueue(const AllReduceCall& call, Stream stream) {
  const AllReduceStrategy how = strategy(call.shape);
  ops::AllReducePeers peers = peers_;
  const AllReduceWords words = allreduce_words(call, how);
  std::copy(words.begin(), words.end(), peers.words);
  ops::allreduce_norm_cuda(call, how, peers, options_.geometry, stream);
}

/// Lets the own GPU stop waiting when the group is aborted; whether it is.
bool DeviceAllReduce::heed_abort() {
  if (group_.size() == 1 || !group_.aborted()) return false;
  std::atomic_ref(status().abandoned).store(1, std::memory_order_release);
  return true;
}

void DeviceAllReduce::wait(Stream stream) {
  constexpr auto kBusy = std::chrono::milliseconds(20), kSlice = std::chrono::milliseconds(1);
  const auto start = std::chrono::steady_clock::now();
  if (group_.size() == 1) wait_for(stream);
  // What the GPU itself refuses is a trouble like any other: the peers must not wait for it.
  auto done = [&] {
    bool is = true;
    or_dead([&] { is = is_done(stream); });
    return is;
  };
  // The GPU's waits last as long as the deadline; a peer that gave up is known here earlier.
  while (group_.size() > 1 && !done()) {
    heed_abort();
    if (std::chrono::steady_clock::now() - start > kBusy) std::this_thread::sleep_for(kSlice);
  }
  check();
}

void DeviceAllReduce::check() {
  if (trouble_) std::rethrow_exception(trouble_);
  const ops::AllReduceStatus& s = status();
  if (std::atomic_ref(status().trouble).load(std::memory_order_acquire) != AllReduceTrouble::kNone)
    or_dead([&] { throw_trouble(s, group_.rank()); });
  if (heed_abort()) or_dead([&] { throw_abort(group_); });
}

DeviceAllReduce::~DeviceAllReduce() {
  if (memory_ && status_) heed_abort();
}

void throw_trouble(const ops::AllReduceStatus& s, int rank) {
  if (s.trouble == AllReduceTrouble::kCallsDiffer)
    throw UsageError(cat("allreduce: the ranks differ in call ", s.call, ": rank ", rank, " has ",
                         kAllReduceWordNames[s.word], " = ", s.mine, ", rank ", s.peer, " has ",
                         s.theirs, "; call all ranks alike"));
  if (s.trouble == AllReduceTrouble::kBadRow)
    throw UsageError(cat("allreduce: entry ", s.token, " of expanded_idx_to_permuted_idx on rank ",
                         rank, " is ", std::int32_t(s.mine), "; legal are the rows given and -1"));
  ensure(s.trouble == AllReduceTrouble::kPeerLate, "an allreduce in trouble that is none");
  const double seconds = double(s.budget_ns) * 1e-9;
  const std::string phase = s.word == 1 ? "allreduce owned rows" : "allreduce contributions";
  throw PeerError(cat("rank ", rank, " waited ", seconds, " s on its GPU for rank ", s.peer, " in ",
                      phase, " (token ", s.token, " of call ", s.call,
                      "); see whether that rank runs, and form a new group"),
                  {rank, s.peer, phase, seconds});
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
