// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <optional>

#include "switchyard/api/bench_allreduce_device.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/api/layer_call.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/rank_run.h"
#include "switchyard/api/run_words.h"
#include "switchyard/base/check.h"
#include "switchyard/base/device_memory.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/checkpoint/digest.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/eplb/placement_file.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/json.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/resolve/probe_cuda.h"
#include "switchyard/resolve/resolver.h"
#include "switchyard/tune/device_roof.h"
#include "switchyard/tune/roof.h"
#include "switchyard/tune/timer.h"

namespace switchyard {
namespace {

constexpr int kMinCalls = 5, kMaxCalls = 200;
constexpr double kBudgetUs = 1.5e6;
constexpr int kRoofSamples = 3;  // before the calls, and again after them
constexpr int kDeviceSamples = 7;
constexpr std::size_t kSmallest = std::size_t(64) << 20, kOwn = std::size_t(512) << 20;

/// What the roof streams: the layer's own experts, or other memory where a cache might hold them.
std::span<const std::byte> roof_memory(std::span<const std::byte> packed, HostBuffer& own) {
  if (packed.size() >= kSmallest) return packed;
  own = HostBuffer(kOwn);
  std::fill(own.bytes().begin(), own.bytes().end(), std::byte(1));
  return own.bytes();
}

/// The roof of the machine that runs the layer: the CPU's sampled around the calls, the GPU's
/// after.
class RoofAround {
 public:
  explicit RoofAround(const layer::Layer& layer) : layer_(layer) {
    if (layer::on_cuda(layer)) return;
    meter_.emplace(*layer.options().pool, layer.options().isa,
                   roof_memory(layer.routed().packed.bytes(), own_));
    meter_->sample(kRoofSamples);
  }

  void finish(Measurement& m) {
    const tune::Roof roof = meter_ ? cpu_roof(m) : device_roof();
    m.roof_gbps = roof.gbps;
    m.roof_gflops = roof.gflops;
  }

 private:
  tune::Roof cpu_roof(Measurement& m) {
    meter_->sample(kRoofSamples);
    m.roof_samples = meter_->samples();
    return meter_->roof();
  }

  tune::Roof device_roof() const {
    const DeviceMemory& packed = *layer_.routed().device_packed;
    tune::DeviceRoofMeter meter(packed.data(), packed.size());
    meter.sample(kDeviceSamples);
    return meter.taken().early(kDeviceSamples);
  }

  const layer::Layer& layer_;
  HostBuffer own_;
  std::optional<tune::RoofMeter> meter_;
};

void time_calls(LayerCall& call, const MoeLayer& layer, Measurement& m) {
  RoofAround roof(layer.impl());
  std::vector<double> times, router, distinct;
  double spent = 0;
  call.prepare(0);
  call.forward();  // the first call touches fresh pages
  for (int i = 1; i <= kMaxCalls && (i <= kMinCalls || spent < kBudgetUs); ++i) {
    call.prepare(i);
    times.push_back(call.forward());
    if (i <= kMinCalls) call.settle();
    distinct.push_back(double(call.distinct_experts()));
    spent += times.back();
  }
  for (int i = 0; i < kMinCalls; ++i) router.push_back(call.route());
  m.calls = std::int64_t(times.size());
  m.time_p50 = tune::percentile(times, 0.5);
  m.time_p90 = tune::percentile(times, 0.9);
  m.time_p99 = tune::percentile(times, 0.99);
  m.router_time_p50 = tune::percentile(router, 0.5);
  m.distinct_experts = std::int64_t(tune::percentile(distinct, 0.5));
  m.gbps = double(m.distinct_experts) * double(layer.expert_stored_bytes()) / m.time_p50 * 1e-3;
  m.gflops = layer_flops(layer.problem(), m.tokens) / m.time_p50 * 1e-3;
  roof.finish(m);
  m.share_of_roof = std::max(m.gbps / m.roof_gbps, m.gflops / m.roof_gflops);
}

void describe(const MoeLayer& layer, const RunOptions& o, Measurement& m) {
  m.checkpoint = o.checkpoint;
  m.preset = o.checkpoint.empty() ? o.preset : "";
  m.layer = layer.impl().weights().layer;
  m.format = layer.problem().format;
  m.activations = std::string(to_string(layer.problem().activations));
  m.leaf = layer.leaf();
  m.device = std::string(to_string(layer.impl().options().leaf->device));
  m.parallel = std::string(to_string(o.build.parallel.value_or(Parallel::kTtp)));
  m.strategy = "none";
  m.slots = layer.problem().num_experts();
  const Deployment& d = LayerBuilder::plan(layer).deployment;
  m.combine_requested = std::string(to_string(resolve::asked_combine(layer.problem(), d)));
  m.combine_effective = "none";
  m.tokens = o.tokens;
  m.tactics = layer.tactics(o.tokens);
  m.routing_launch = layer.routing_launch(o.tokens);
  m.notices = layer.notices();
}

Measurement measure(const MoeLayer& layer, const RunOptions& o) {
  Measurement m;
  describe(layer, o, m);
  m.budget = layer::budgets_of(layer.impl()).oracle;
  m.ok = true;
  if (o.tokens == 0) return m;
  LayerCall call({&layer, 1}, {o.tokens, o.routing, o.seed});
  time_calls(call, layer, m);
  call.prepare(0);
  const bool counted = !layer::on_cuda(layer.impl());  // a forward on cuda counts nothing here
  if (counted) layer.take_expert_load();
  call.forward();
  call.settle();
  if (counted) m.expert_tokens = layer.expert_load().choices;
  bool same_bits = false;
  const layer::Judgement j = call.check(m.checked_tokens, same_bits);
  m.rel_l2 = j.rel_l2_oracle;
  m.ok = same_bits && j.ok(layer::budgets_of(layer.impl()));
  if (!m.ok && j.overflows) m.notices.push_back(overflow_text());
  if (!same_bits) m.notices.push_back("a token alone has other bits than in the batch");
  return m;
}

BuildOptions build_options(const RunOptions& o, std::int64_t layer, std::int64_t hidden) {
  BuildOptions build = o.build;
  if (!o.placement.empty()) {
    const eplb::Placement placement = eplb::read_placement(o.placement);
    const std::int64_t slots = placement.num_slots;
    require(placement.num_ranks == o.build.ep, "run: the placement ", o.placement, " is for ",
            placement.num_ranks, " ranks, and ep = ", o.build.ep,
            "; plan one for these, or run on as many ranks");
    require(build.slots == 0 || build.slots == slots, "run: slots = ", build.slots,
            ", the placement has ", slots, "; leave slots out");
    build.slots = slots;
  }
  if (!o.calibrate.empty()) build.calibration = read_calibration(o.calibrate, layer, hidden);
  return build;
}

/// Where a layer stands among those of the run.
struct Position {
  std::size_t number = 0, layers = 1;
};

/// Which expert stands in which slot of the layer at position `at` of the run: as the placement
/// says, else in the linear layout where there are more slots than experts; empty: expert e in slot
/// e.
std::vector<std::int32_t> slot_experts_of(const Problem& p, const Deployment& d,
                                          const std::optional<eplb::Placement>& placement,
                                          Position at) {
  const std::int64_t slots = d.num_slots(p.num_experts());
  if (!placement && slots == p.num_experts()) return {};
  if (!placement) return eplb::linear_placement({p.num_experts(), slots, d.ep}, 1).layers[0];
  require(placement->num_experts == p.num_experts() && placement->num_ranks == d.ep,
          "run: the placement is of ", placement->num_experts, " experts on ", placement->num_ranks,
          " ranks, the layer has ", p.num_experts(), " on ep = ", d.ep, "; plan one for these");
  const std::size_t layers = placement->layers.size();
  require(layers == 1 || layers == at.layers, "run: the placement has ", layers,
          " layers and the run ", at.layers, "; plan one for all, or one for each");
  return placement->layers[layers == 1 ? 0 : at.number];
}

/// Ranks on GPUs write into one another's memory. Errors: CannotServe where a pair of them cannot.
void check_gpus(const PreparedLayer& p) {
  if (p.options.leaf->device != Device::kCuda) return;
  const Eligibility verdict =
      api::gpus_join(p.deployment.env, resolve::probe_gpus().gaps, p.deployment.ranks());
  if (!verdict.eligible())
    throw CannotServe(cat(to_string(verdict.reason()), ": ", verdict.detail()),
                      resolve::to_json(p.state->report), verdict.reason());
}

/// One layer on the ranks of a team.
Measurement measure_on(RankTeam& team, const std::function<PreparedLayer()>& prepare,
                       const RunOptions& o, Position at) {
  std::optional<PreparedLayer> prepared;
  team.together([&] {
    std::optional<eplb::Placement> placement;
    if (!o.placement.empty()) placement = eplb::read_placement(o.placement);
    prepared.emplace(prepare());
    check_gpus(*prepared);
    prepared->slot_experts =
        slot_experts_of(prepared->weights.problem, prepared->deployment, placement, at);
  });
  const PreparedLayer& p = *prepared;
  Measurement m =
      team.run([&](comm::Group& group) { return measure_rank(group, p, o, team.carriers()); });
  m.checkpoint = o.checkpoint;
  m.preset = o.checkpoint.empty() ? o.preset : "";
  m.layer = p.weights.layer;
  m.format = p.weights.problem.format;
  m.activations = std::string(to_string(p.weights.problem.activations));
  m.device = std::string(to_string(p.options.leaf->device));
  m.combine_requested =
      std::string(to_string(resolve::asked_combine(p.weights.problem, p.deployment)));
  m.notices.insert(m.notices.begin(), p.state->notices.begin(), p.state->notices.end());
  return m;
}

/// Measures one layer, however many ranks there are.
struct LayerRunner {
  const RunOptions& o;
  RankTeam team;

  Measurement preset() {
    auto build = [&] { return build_options(o, 0, make_preset(o.preset).hidden); };
    if (one_rank()) return measure(MoeLayer::from_preset(o.preset, build()), o);
    return measure_on(team,
                      [&] {
                        return LayerBuilder::prepare(
                            layer::make_synthetic(make_preset(o.preset), o.build.seed), build());
                      },
                      o, {});
  }
  Measurement of(const Checkpoint& checkpoint, const LayerEntry& entry, Position at) {
    auto build = [&] { return build_options(o, entry.index, entry.hidden); };
    if (one_rank()) return measure(MoeLayer::from_checkpoint(checkpoint, entry.index, build()), o);
    return measure_on(
        team, [&] { return LayerBuilder::prepare(checkpoint.impl().layer(entry.index), build()); },
        o, at);
  }

 private:
  // A pinned strategy is asked on one rank too, and says there that it has nobody to join.
  bool one_rank() const {
    return o.build.ep * o.build.tp == 1 &&
           pinned_strategy(resolve::environment(), o.build.comm) == "auto";
  }
};

/// Ranks that read different weights of one shape would each be right about another layer.
void agree_on_weights(const RunOptions& o, const std::vector<LayerEntry>& layers) {
  if (o.processes == nullptr || o.processes->size() == 1) return;
  std::string digest;
  o.processes->together([&] {
    std::vector<std::string> blocks;
    for (const LayerEntry& entry : layers) blocks.push_back(entry.block);
    digest = checkpoint::checkpoint_digest(o.checkpoint, blocks);
  });
  o.processes->agree(
      {{"a checkpoint whose digest (config, tensor table, 3 x 64 bytes of each "
        "tensor of the layers)",
        digest}});
}

}  // namespace

const RunRules& run_rules() {
  static constexpr RunRules kRules{
      .distinct_experts = "the median over the timed calls, each with routing of its own",
      .expert_tokens = "of one call, the judged one, which repeats the untimed first call"};
  return kRules;
}

RunResult run(const RunOptions& o) {
  if (o.processes != nullptr) o.processes->agree(run_words("run", o));
  require(o.tokens >= 0, "run: tokens = ", o.tokens, " is negative");
  require(o.placement.empty() || o.build.ep > 1,
          "run: a placement spreads slots over ranks, and this is for ep = ", o.build.ep,
          o.build.tp > 1 ? ", where every rank holds columns of all experts; ask for dep or tep"
                         : "; ask for more ranks",
          ", or leave the placement out");
  require(
      o.finalize == "plain" || o.build.ep * o.build.tp > 1, "run: finalize ", o.finalize,
      " ends layers of several ranks that hold the same tokens; ask for parallel ttp and tp = 2, "
      "or for finalize plain");
  require(o.chunk_tokens >= 0, "run: chunk_tokens = ", o.chunk_tokens, " is negative");
  require(o.chunk_tokens == 0 || o.build.ep * o.build.tp > 1,
          "run: chunk_tokens = ", o.chunk_tokens,
          " cuts the exchanges of several ranks, and this is one; leave it out");
  RunResult result;
  LayerRunner runner{o, RankTeam(o.processes, o.build.ep * o.build.tp)};
  if (o.checkpoint.empty()) {
    require(!o.layer, "run: layer = ", o.layer.value_or(0),
            " belongs to a checkpoint; a preset is one layer, leave it out");
    result.measurements.push_back(runner.preset());
  } else {
    std::optional<Checkpoint> checkpoint;
    std::vector<LayerEntry> layers;
    runner.team.together([&] {
      checkpoint.emplace(Checkpoint::open(o.checkpoint));
      layers = chosen_layers(*checkpoint, o.layer);
    });
    agree_on_weights(o, layers);
    result.notices = checkpoint->impl().notices();
    for (const LayerEntry& entry : layers)
      result.measurements.push_back(
          runner.of(*checkpoint, entry, {result.measurements.size(), layers.size()}));
  }
  result.ok = std::all_of(result.measurements.begin(), result.measurements.end(),
                          [](const Measurement& m) { return m.ok; });
  return result;
}

}  // namespace switchyard
