// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_allreduce_device.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "switchyard/api/allreduce_mirror.h"
#include "switchyard/api/allreduce_traffic.h"
#include "switchyard/api/time_summary.h"
#include "switchyard/base/check.h"
#include "switchyard/base/device_stream.h"
#include "switchyard/comm/device_allreduce.h"
#include "switchyard/comm/nccl_library.h"
#include "switchyard/tune/timer.h"

namespace switchyard::api {
namespace {

constexpr std::string_view kPhase = "bench allreduce";
constexpr std::int64_t kCheckedTokens = 8;

/// Times of one call in graphs of many, the slowest rank's of every replay. Each replay stands
/// behind a call of its own, so that no rank's clock runs while the others are still on the way.
template <class F>
std::vector<double> time_graph(comm::Group& g, const DeviceStream& stream, double seconds,
                               F&& enqueue) {
  constexpr int kMinCalls = 10, kMaxCalls = 100, kMinReplays = 9, kMaxReplays = 400;
  constexpr double kGraphUs = 3000;
  auto replay = [&](DeviceGraph& graph, int calls, int replays) {
    std::vector<double> times;
    for (int i = 0; i < replays; ++i) {
      g.barrier(kPhase);
      enqueue();
      times.push_back(graph.run() / calls);
    }
    const std::string mine(reinterpret_cast<const char*>(times.data()),
                           times.size() * sizeof(double));
    for (const std::string& theirs : g.all_gather(mine, kPhase))
      for (std::size_t i = 0; i < times.size(); ++i) {
        double value = 0;
        std::memcpy(&value, theirs.data() + i * sizeof value, sizeof value);
        times[i] = std::max(times[i], value);
      }
    return times;
  };
  auto many = [&](int calls) {
    return [&enqueue, calls] {
      for (int i = 0; i < calls; ++i) enqueue();
    };
  };
  enqueue();
  stream.wait();  // kernels are loaded
  DeviceGraph trial(stream, many(kMinCalls));
  const double one = std::max(tune::percentile(replay(trial, kMinCalls, 3), 0.5), 0.5);
  const int calls = int(std::clamp(kGraphUs / one, double(kMinCalls), double(kMaxCalls)));
  const int replays =
      int(std::clamp(seconds * 1e6 / (one * calls), double(kMinReplays), double(kMaxReplays)));
  DeviceGraph graph(stream, many(calls));
  return replay(graph, calls, replays);
}

/// The unfused steps of one rank: finalize or reduction where the pattern has one, NCCL's
/// all-reduce, then residual, norm and quantisation in one kernel.
class SeparateSteps {
 public:
  /// Collective. Errors: DeviceError on every rank.
  SeparateSteps(comm::Group& group, const ops::AllReduceCall& fused)
      : nccl_(group),
        alone_group_(std::move(comm::make_thread_groups(1, group.deadlines())[0])),
        count_(fused.shape.tokens * fused.shape.hidden),
        dtype_(fused.shape.dtype) {
    try {
      comm::guarded(group, kPhase, [&] { prepare(fused); });
    } catch (const UsageError& e) {
      throw DeviceError(e.what());
    }
  }

  void run(Stream stream) {
    if (local_) alone_->run(*local_, stream);
    nccl_.all_reduce(input_, sum_->data(), count_, dtype_, stream);
    if (norm_) alone_->run(*norm_, stream);
  }
  const std::string& version() const { return nccl_.version(); }

 private:
  void prepare(const ops::AllReduceCall& fused) {
    const std::size_t bytes = std::size_t(count_) * size_of(dtype_);
    alone_.emplace(alone_group_, comm::AllReduceCapacity{1, fused.shape.tokens, fused.shape.hidden,
                                                         fused.shape.dtype});
    contribution_.emplace(bytes);
    sum_.emplace(bytes);
    ops::CallShape shape = fused.shape;
    shape.strategy = ops::AllReduceStrategy::kOneShot;
    const auto* plain = std::get_if<ops::PlainSource>(&fused.source);
    input_ = plain ? plain->input : contribution_->data();
    if (!plain) local_ = {{shape, fused.source, contribution_->data(), std::nullopt}};
    if (fused.norm) norm_ = {{shape, ops::PlainSource{sum_->data()}, nullptr, fused.norm}};
  }

  comm::NcclSum nccl_;
  comm::Group alone_group_;
  std::optional<comm::DeviceAllReduce> alone_;
  std::int64_t count_;
  Dtype dtype_;
  std::optional<DeviceMemory> contribution_, sum_;
  const void* input_ = nullptr;
  std::optional<ops::AllReduceCall> local_, norm_;
};

/// Bytes that all ranks write over the links.
std::int64_t link_bytes(const BenchAllReduceOptions& o, std::int64_t tokens,
                        ops::AllReduceStrategy strategy) {
  const std::int64_t tensor = tokens * o.hidden * std::int64_t(size_of(o.dtype));
  const std::int64_t peers = o.ranks - 1;
  return strategy == ops::AllReduceStrategy::kTwoShot ? 2 * peers * tensor
                                                      : o.ranks * peers * tensor;
}

}  // namespace

Eligibility gpus_join(const Environment& env, const std::vector<resolve::PeerGap>& gaps,
                      std::int64_t ranks) {
  if (!env.has_dep("cuda"))
    return Eligibility::no(Reject::kDepMissing,
                           "this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
  if (env.num_gpus < ranks)
    return Eligibility::no(Reject::kTopologyUnsupported,
                           cat(ranks, " ranks take a GPU each, ", env.num_gpus, " are here"));
  constexpr int kHopper = 90;
  if (env.sm != kHopper)
    return Eligibility::no(Reject::kSmUnsupported, cat("GPUs of architecture ", env.sm,
                                                       "; the kernels are built for ", kHopper));
  for (const resolve::PeerGap& gap : gaps)
    if (gap.gpu < ranks && gap.peer < ranks)
      return Eligibility::no(Reject::kTopologyUnsupported,
                             cat("GPU ", gap.gpu, " cannot address GPU ", gap.peer, "; ", ranks,
                                 " ranks need GPUs that are linked by peer access"));
  return Eligibility::yes();
}

void run_device_row(comm::Group& g, const BenchAllReduceOptions& o, std::int64_t tokens,
                    AllReduceRow& row) {
  comm::use_gpu(g.rank());
  AllReduceTraffic traffic(o, tokens, g.rank());
  const ops::AllReduceCall host = traffic.fused();
  AllReduceMirror mirror(host);
  DeviceStream stream;
  comm::DeviceAllReduce workspace(g, {o.ranks, tokens, o.hidden, o.dtype});
  auto fused_call = [&] { workspace.run(mirror.call(), stream.get()); };
  fused_call();
  workspace.wait(stream.get());
  const std::vector<double> fused = time_graph(g, stream, o.seconds, fused_call);
  workspace.wait(stream.get());
  mirror.download();  // of the last replay
  const std::vector<std::string> digests = g.all_gather(traffic.digest(), kPhase);
  const ops::AllReduceStrategy strategy = workspace.strategy(host.shape);
  if (g.rank() == 0) {
    row.tokens = tokens;
    row.checked_tokens = std::min(tokens, kCheckedTokens);
    row.errors = judge_traffic(o, row.checked_tokens, traffic);
    row.strategy = o.ranks == 1 ? "local" : std::string(ops::to_string(strategy));
    row.fused = summary_of(fused);
    row.equal_ranks = std::all_of(digests.begin(), digests.end(),
                                  [&](const std::string& d) { return d == digests[0]; });
    row.bytes = link_bytes(o, tokens, strategy);
    row.gbps = double(row.bytes) / double(o.ranks) / row.fused.p50 * 1e-3;
  }
  if (o.ranks == 1 || tokens == 0) return;
  std::optional<SeparateSteps> steps;
  std::string absent;
  try {
    steps.emplace(g, mirror.call());
  } catch (const comm::PeerError&) {
    throw;
  } catch (const DeviceError& e) {  // on every rank, with the text of the one that failed
    absent = e.what();
  }
  if (g.rank() == 0) row.separate_by = steps ? steps->version() : absent;
  if (!steps) return;
  const std::vector<double> separate =
      time_graph(g, stream, o.seconds, [&] { steps->run(stream.get()); });
  if (g.rank() == 0) row.separate = summary_of(separate);
}

}  // namespace switchyard::api
