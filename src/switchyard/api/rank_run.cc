// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/rank_run.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "switchyard/api/behind_tensors.h"
#include "switchyard/api/layer_call.h"
#include "switchyard/api/rank_builder.h"
#include "switchyard/api/rank_device_call.h"
#include "switchyard/base/check.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/comm/gathered.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/comm/peer_memory.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/comm/thread_team.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/rank_judge.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/layer/single_rank.h"
#include "switchyard/ops/grouped_ffn/routing_launch.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/tune/device_roof.h"
#include "switchyard/tune/roof.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr const char* kPhase = "run on the ranks";
constexpr int kMinCalls = 5, kMaxCalls = 200;
constexpr double kBudgetUs = 1.5e6;
constexpr int kRoofSamples = 3;  // before the calls, and again after them
constexpr std::size_t kRoofBytes = std::size_t(512) << 20, kLeastRoofBytes = std::size_t(64) << 20;

double largest(comm::Group& group, double mine) {
  const std::vector<double> all = comm::gathered(group, mine, kPhase);
  return *std::max_element(all.begin(), all.end());
}

/// Bytes of one routed expert as its format stores it.
std::int64_t stored_bytes(const layer::Layer& layer) {
  const Problem& p = layer.problem();
  const formats::WeightLayout& layout = layer.weights().layout;
  return (p.gated() ? 2 : 1) * layout.stored_bytes(p.inter, p.expert_hidden()) +
         layout.stored_bytes(p.expert_hidden(), p.inter);
}

/// What the ranks' GPUs reach together, each on its own experts.
void device_roof(comm::Group& group, const layer::Layer& part, Measurement& m) {
  constexpr int kSamples = 7;
  group.barrier(kPhase);  // what the meter allocates and frees waits for all kernels of the GPU
  tune::Roof mine;
  {
    const DeviceMemory& packed = *part.routed().device_packed;
    tune::DeviceRoofMeter meter(packed.data(), packed.size());
    meter.sample(kSamples);
    mine = meter.taken().early(kSamples);
  }
  m.roof_gbps = m.roof_gflops = 0;
  for (const double gbps : comm::gathered(group, mine.gbps, kPhase)) m.roof_gbps += gbps;
  for (const double gflops : comm::gathered(group, mine.gflops, kPhase)) m.roof_gflops += gflops;
}

/// The rates of all ranks at once, each with its own threads and memory: what the machine gives
/// them together, also where they are more than it has processors.
class RankRoof {
 public:
  RankRoof(comm::Group& group, const layer::Layer& part)
      : group_(group),
        pool_(*part.options().pool),
        isa_(part.options().isa),
        memory_(std::max(kLeastRoofBytes, kRoofBytes / std::size_t(group.size()))) {
    std::fill(memory_.bytes().begin(), memory_.bytes().end(), std::byte(1));
  }
  void sample() {
    for (int i = 0; i < kRoofSamples; ++i) {
      const double read = rate([&] { return tune::read_part(pool_, isa_, memory_.bytes()); });
      taken_.add({.gbps = read, .gflops = rate([&] { return tune::dot_part(pool_, isa_); })});
    }
  }
  void finish(Measurement& m) {
    sample();
    m.roof_samples = taken_.count();
    m.roof_gbps = taken_.high().gbps;
    m.roof_gflops = taken_.high().gflops;
  }

 private:
  template <class F>
  double rate(F&& part) {
    group_.barrier(kPhase);
    return tune::rate_of(comm::gathered(group_, part(), kPhase));
  }

  comm::Group& group_;
  ThreadPool& pool_;
  CpuIsa isa_;
  HostBuffer memory_;
  tune::RoofSamples taken_;
};

/// One rank's calls.
class RankCalls {
 public:
  RankCalls(layer::RankLayer& layer, const RunOptions& o)
      : layer_(layer),
        p_(layer.part().problem()),
        group_(layer.group()),
        inputs_(p_, layer.part().weights().router.vocab,
                {o.tokens, o.routing,
                 o.seed + (layer.own_tokens() ? std::uint64_t(group_.rank()) : 0)}),
        workspace_(layer.on_gpus() ? 0 : layer.workspace_bytes()),
        touched_(std::size_t(p_.num_experts()), '0') {
    if (layer_.ending() != Ending::kPlain)
      behind_.emplace(p_.hidden, layer_.part().options().dtype, o.tokens, o.seed);
    if (layer.on_gpus())
      device_.emplace(layer, RankDeviceCall::Args{.tokens = o.tokens,
                                                  .hidden = inputs_.typed(),
                                                  .behind = behind_ ? &*behind_ : nullptr,
                                                  .trace = &used_});
  }

  void time(Measurement& m) {
    std::optional<RankRoof> roof;  // of the host's ranks: sampled around the calls
    if (!device_) roof.emplace(group_, layer_.part());
    if (roof) roof->sample();
    std::vector<double> times, router, distinct;
    double spent = 0;
    call(0);  // the first call touches fresh pages
    for (int i = 1; i <= kMaxCalls && (i <= kMinCalls || spent < kBudgetUs); ++i) {
      times.push_back(call(i));
      distinct.push_back(double(distinct_experts()));
      spent += times.back();
    }
    if (used_.shared) m.tactics.push_back({layer::kSharedCall, *used_.shared});
    if (used_.experts) m.tactics.push_back({layer::kExpertsCall, *used_.experts});
    for (int i = 0; i < kMinCalls; ++i) router.push_back(largest(group_, route()));
    m.calls = std::int64_t(times.size());
    m.time_p50 = tune::percentile(times, 0.5);
    m.time_p90 = tune::percentile(times, 0.9);
    m.time_p99 = tune::percentile(times, 0.99);
    m.router_time_p50 = tune::percentile(router, 0.5);
    m.distinct_experts = std::int64_t(tune::percentile(distinct, 0.5));
    m.gbps = double(m.distinct_experts) * double(stored_bytes(layer_.part())) / m.time_p50 * 1e-3;
    const std::int64_t tokens = m.tokens * (layer_.own_tokens() ? group_.size() : 1);
    m.gflops = layer_flops(p_, tokens) / m.time_p50 * 1e-3;
    roof ? roof->finish(m) : device_roof(group_, layer_.part(), m);
    m.share_of_roof = std::max(m.gbps / m.roof_gbps, m.gflops / m.roof_gflops);
  }

  void check(Measurement& m) {
    if (device_) {  // which counts nothing here
      prepare(0);
      device_->fetch(inputs_.out(), inputs_.ids());
    } else {
      layer_.part().take_expert_load();
      call(0);
      m.expert_tokens = expert_tokens();
      if (behind_) layer_.forward(inputs_.args(workspace_.bytes()));  // the sum alone, to be judged
    }
    const Sample sample = inputs_.sample(kCheckedTokens);
    const layer::Judgement j = layer::judge_ranks(layer_, sample.args());
    m.checked_tokens = std::int64_t(sample.picked.size());
    m.rel_l2 = j.rel_l2_oracle;
    const bool same = group_.vote(inputs_.same_bits(sample, j.out), kPhase);
    m.ok = same && j.ok(budgets_of(layer_));
    if (!same) m.notices.push_back("a token alone has other bits than in the batch");
    if (behind_) check_behind(m);
  }

 private:
  /// Fills in the calls of one timing on the GPU; the host's copies are those of the first, which
  /// is judged.
  void prepare(int number) {
    for (std::int64_t i = device_->calls() - 1; i >= 0; --i) {
      inputs_.fill(number * device_->calls() + i);
      device_->set(i, inputs_.logits(), inputs_.token_ids());
    }
  }

  /// Runs call number `number` on all ranks; the slowest one's time. Units: µs.
  double call(int number) {
    if (device_) {
      prepare(number);
      const double us = largest(group_, device_->forward());
      device_->fetch(inputs_.out(), inputs_.ids());
      return us;
    }
    inputs_.fill(number);
    ForwardArgs f = inputs_.args(workspace_.bytes());
    f.trace = &used_;
    group_.barrier(kPhase);
    const double start = tune::now_us();
    if (behind_) {
      layer_.forward(f, behind_->args());
    } else {
      layer_.forward(f);
    }
    return largest(group_, tune::now_us() - start);
  }

  double route() {
    if (device_) return device_->route();
    ForwardArgs f = inputs_.args(workspace_.bytes());
    f.logits = {};
    std::vector<float> weights(inputs_.ids().size());
    layer::Routed routed{inputs_.ids(), weights, p_.top_k(), 1};
    const double start = tune::now_us();
    layer::route_tokens(layer_.part(), f, p_.dtype, inputs_.logits(), routed);
    return tune::now_us() - start;
  }

  /// Routed experts that the last call touched on any rank.
  std::int64_t distinct_experts() {
    std::fill(touched_.begin(), touched_.end(), '0');
    for (std::int32_t id : inputs_.ids())
      if (id >= 0 && id < p_.num_experts()) touched_[std::size_t(id)] = '1';
    for (const std::string& other : group_.all_gather(touched_, kPhase))
      for (std::size_t e = 0; e < touched_.size(); ++e)
        if (other[e] == '1') touched_[e] = '1';
    return std::count(touched_.begin(), touched_.end(), '1');
  }

  std::vector<std::int64_t> expert_tokens() {
    std::vector<std::int64_t> out = layer_.part().expert_load().choices;
    const std::string_view mine{reinterpret_cast<const char*>(out.data()), out.size() * 8};
    const std::vector<std::string> all = group_.all_gather(mine, kPhase);
    if (!layer_.own_tokens()) return out;
    std::fill(out.begin(), out.end(), 0);
    for (const std::string& text : all)
      for (std::size_t e = 0; e < out.size(); ++e) {
        std::int64_t count;
        std::memcpy(&count, text.data() + e * 8, 8);
        out[e] += count;
      }
    return out;
  }

  /// Residual and norm against their formulas in double, over all tokens; equal on all ranks. The
  /// sum that they start from, which a forward without anything behind it gives, is judged already.
  void check_behind(Measurement& m) {
    if (device_) {
      device_->fetch(inputs_.out(), inputs_.ids());
      device_->fetch_behind();
    } else {
      layer_.forward(inputs_.args(workspace_.bytes()));
    }
    const double error = behind_->rel_l2(inputs_.out());
    constexpr double kLimit = 0x1p-8;  // of the dtype's own roundings
    const bool same = behind_->same_on_all(group_);
    m.rel_l2 = std::max(m.rel_l2, error);
    m.ok = m.ok && same && error <= (p_.dtype == Dtype::kF32 ? 1e-5 : kLimit);
    if (!same) m.notices.push_back("the ranks' residuals or norms differ");
  }

  layer::RankLayer& layer_;
  const Problem& p_;
  comm::Group& group_;
  CallInputs inputs_;
  HostBuffer workspace_;
  Trace used_;           // of the calls so far
  std::string touched_;  // '1' for each expert that is
  std::optional<BehindTensors> behind_;
  std::optional<RankDeviceCall> device_;  // of ranks on GPUs
};

const char* layout_name(comm::RowLayout layout) {
  switch (layout) {
    case comm::RowLayout::kRankMajor:
      return "rank_major";
    case comm::RowLayout::kCompact:
      return "compact";
    case comm::RowLayout::kExpertMajor:
      return "expert_major";
  }
  throw InternalError("a row layout has no text");
}

/// Every strategy's answer: that of the join, where a pin keeps it short that of the others too.
JoinedRanks joined_of(const PreparedLayer& p, const layer::RankLayer& layer,
                      const std::string& carriers) {
  JoinedRanks out{.carriers = carriers,
                  .layout = "none",
                  .weights = "experts",
                  .payload = layer.payload().text(),
                  .payload_reason = layer.payload().why_not,
                  .payload_bytes = layer.payload().row_bytes + layer.payload().scale_bytes,
                  .chunk_tokens = layer.chunk_tokens(),
                  .slot_experts = {layer.slots().experts().begin(), layer.slots().experts().end()},
                  .strategies = {}};
  if (layer.strategy() != nullptr) {
    out.layout = layout_name(layer.strategy()->contract.layout);
    out.weights = layer.weights_by() == comm::WeightsBy::kCombine ? "combine" : "experts";
  }
  for (const resolve::StrategyVerdict& v :
       api::all_verdicts(layer.part().problem(), p.deployment, p.join)) {
    const bool chosen = p.join.strategy != nullptr && v.strategy == p.join.strategy->name;
    out.strategies.push_back({v.strategy, !v.reason,
                              v.reason ? std::string(to_string(*v.reason)) : "",
                              chosen ? "" : v.detail});
  }
  return out;
}

}  // namespace

layer::RankOptions rank_options(comm::Group& group, const PreparedLayer& p, const RunOptions& o) {
  require(o.build.pool == nullptr,
          "run: a pool of threads is given, and ranks have their own; leave it out");
  const int threads = rank_threads(group);  // collective
  layer::RankOptions r = part_options(
      group, p, std::make_shared<ThreadPool>(o.build.threads > 0 ? o.build.threads : threads));
  r.capacity = std::max<std::int64_t>(1, o.tokens);
  r.chunk = o.chunk_tokens;
  r.ending = to_ending(o.finalize);
  r.shared_gpu = p.shared_gpu;
  r.agreed.push_back({"seed", cat(o.seed)});
  r.agreed.push_back({"the layer", o.checkpoint.empty() ? o.preset : "of a checkpoint"});
  return r;
}

RankTeam::RankTeam(Processes* processes, std::int64_t ranks)
    : processes_(processes != nullptr && processes->size() > 1 ? processes : nullptr),
      ranks_(ranks) {
  require(processes_ == nullptr || processes_->size() == ranks, "the launcher started ",
          processes_ == nullptr ? 1 : processes_->size(), " processes and the layer is for ", ranks,
          ranks == 1 ? " rank" : " ranks",
          "; each process is a rank, start as many, or give no number of ranks");
  if (ranks > comm::kMaxGroupRanks)
    throw CannotServe(
        cat(to_string(Reject::kTopologyUnsupported), ": ranks = ", ranks, " exceed the ",
            comm::kMaxGroupRanks, " that share the memory of one host"),
        "{}", Reject::kTopologyUnsupported);
}

void RankTeam::each(const std::function<void(comm::Group&)>& work) {
  if (processes()) {
    comm::Group group = processes_->form_group();
    return comm::or_abort(group, [&] { work(group); });
  }
  const comm::Deadlines deadlines = comm::deadlines_of(resolve::environment());
  std::vector<comm::Group> groups = comm::make_thread_groups(int(ranks_), deadlines);
  comm::run_on_threads(groups, work);
}

Measurement RankTeam::run(const std::function<Measurement(comm::Group&)>& work) {
  std::vector<std::optional<Measurement>> results(processes() ? 1 : std::size_t(ranks_));
  each([&](comm::Group& group) {
    results[processes() ? 0 : std::size_t(group.rank())] = work(group);
  });
  return std::move(*results[0]);
}

Measurement measure_rank(comm::Group& group, const PreparedLayer& p, const RunOptions& o,
                         const std::string& carriers) {
  if (p.options.leaf->device == Device::kCuda) comm::use_gpu(p.shared_gpu ? 0 : group.rank());
  const layer::RankOptions options = rank_options(group, p, o);
  check_pinned_leaf("run", p, o.build);
  layer::RankLayer layer(group, p.weights, options);
  Measurement m;
  m.ranks = group.size();
  m.parallel = std::string(to_string(p.deployment.parallel));
  m.leaf = std::string(layer.leaf_id());
  m.strategy = options.strategy != nullptr ? std::string(options.strategy->name) : "all_reduce";
  m.ep = p.deployment.ep;
  m.tp = p.deployment.tp;
  m.slots = layer.slots().num_slots();
  m.combine_effective = std::string(comm::to_string(layer.wire()));
  m.finalize = std::string(to_string(layer.ending()));
  m.joined = joined_of(p, layer, carriers);
  m.tokens = o.tokens;
  m.budget = budgets_of(layer).oracle;
  m.ok = true;
  m.routing_launch = report(
      layer::on_cuda(layer.part()) ? ops::RoutingLaunch::kAmongRanks : ops::RoutingLaunch::kOnCpu,
      {.spec = &p.weights.problem.routing});
  calibrate_rank(layer, o.build, m.notices);
  if (o.tokens > 0) {
    RankCalls calls(layer, o);
    calls.time(m);
    calls.check(m);
  }
  group.barrier("end of the run");  // a rank that fails until here fails on all
  return m;
}

}  // namespace switchyard
