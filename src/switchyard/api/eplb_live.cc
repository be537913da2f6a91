// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/eplb_live.h"

#include <algorithm>
#include <cmath>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/base/random.h"
#include "switchyard/comm/factory.h"
#include "switchyard/comm/thread_team.h"
#include "switchyard/core/preset.h"
#include "switchyard/eplb/placement.h"
#include "switchyard/layer/rank_layer.h"
#include "switchyard/layer/synthetic.h"
#include "switchyard/resolve/probe.h"

namespace switchyard {
namespace {

constexpr std::int64_t kChoices = 2;

/// The layer that serves: `tiny`, with as many experts as the trace has.
PreparedLayer prepared_layer(const EplbLiveOptions& o) {
  Problem p = make_preset("tiny");
  const std::int64_t experts = o.trace.num_experts();
  p.routing = make_routing(RoutingMethodType::kRenormalize, experts, std::min(kChoices, experts));
  BuildOptions build;
  build.ep = o.ranks;
  build.parallel = Parallel::kDep;
  build.slots = o.slots;
  build.comm = comm::expert_major().name;
  build.device = Device::kCpu;
  build.seed = o.seed;
  return LayerBuilder::prepare(layer::make_synthetic(p, o.seed), build);
}

/// Distinct experts of a token, drawn by the step's loads: the largest of log(u) / load.
void draw(std::span<const double> loads, const Random& random, std::int64_t token, std::int64_t k,
          std::int32_t* ids) {
  std::vector<std::pair<double, std::int32_t>> drawn;
  for (std::size_t e = 0; e < loads.size(); ++e) {
    const auto at = std::uint64_t(token) * loads.size() + e;
    const double u = std::max(double(random.uniform(at)), 0x1p-20);
    // Experts without a load come behind all others, in an order of chance.
    drawn.emplace_back(std::log(u) * (loads[e] > 0 ? 1 / loads[e] : 0x1p60), std::int32_t(e));
  }
  std::partial_sort(drawn.begin(), drawn.begin() + k, drawn.end(), std::greater<>());
  for (std::int64_t j = 0; j < k; ++j) ids[j] = drawn[std::size_t(j)].second;
}

/// One rank's tokens of a step, and where its layers write.
struct Tokens {
  Tokens(const Problem& p, const EplbLiveOptions& o)
      : hidden(std::size_t(o.tokens * p.hidden) * 2),
        out(hidden.size()),
        ids(std::size_t(o.tokens * p.top_k())),
        weights(ids.size(), 1.0F / float(p.top_k())) {}

  void fill(const Problem& p, const EplbLiveOptions& o, std::size_t step, int rank) {
    const Random random(o.seed + step * 4099, std::uint64_t(rank));
    for (std::int64_t i = 0; i < o.tokens * p.hidden; ++i)
      store_element(Dtype::kBf16, hidden.data(), i, random.uniform(std::uint64_t(i)) - 0.5F);
    const Random choices(o.seed + step * 4099 + 1, std::uint64_t(rank));
    for (std::int64_t t = 0; t < o.tokens; ++t)
      draw(o.trace.layers[step], choices, t, p.top_k(), ids.data() + t * p.top_k());
  }

  /// The output of one layer.
  std::vector<std::byte> run(layer::RankLayer& layer, HostBuffer& workspace, std::int64_t tokens) {
    std::fill(out.begin(), out.end(), std::byte(0xff));
    ForwardArgs f;
    f.tokens = tokens;
    f.hidden = hidden.data();
    f.hidden_stride = f.out_stride = layer.part().problem().hidden;
    f.routing = {.ids = ids.data(), .weights = weights.data()};
    f.out = out.data();
    f.workspace = workspace.bytes();
    layer.forward(f);
    return out;
  }

  std::vector<std::byte> hidden, out;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

layer::RankOptions options_of(const PreparedLayer& p, const EplbLiveOptions& o) {
  layer::RankOptions r;
  r.layer = p.options;
  r.layer.progress = nullptr;
  r.layer.pool = std::make_shared<ThreadPool>(1);
  r.parallel = Parallel::kDep;
  r.strategy = p.join.strategy;
  r.capacity = o.tokens;
  return r;
}

/// What all ranks do; rank 0's steps are the answer.
void serve(comm::Group& group, const PreparedLayer& p, const EplbLiveOptions& o,
           EplbLiveResult& out) {
  const Problem& problem = p.weights.problem;
  const eplb::Placement linear =
      eplb::linear_placement({problem.num_experts(), o.slots, o.ranks}, 1);
  layer::RankOptions options = options_of(p, o);
  // Fewer experts than ranks: the layer that never moves stands in slots too.
  if (problem.num_experts() < o.ranks) options.slot_experts = linear.layers[0];
  layer::RankLayer fixed(group, p.weights, options);
  options.slot_experts = linear.layers[0];
  options.balanced = true;
  layer::RankLayer live(group, p.weights, options);
  HostBuffer of_fixed(fixed.workspace_bytes()), of_live(live.workspace_bytes());
  Tokens tokens(problem, o);
  eplb::Balancer balancer(linear, o.balancer);
  for (std::size_t step = 0; step < o.trace.layers.size(); ++step) {
    tokens.fill(problem, o, step, group.rank());
    const bool same = tokens.run(fixed, of_fixed, o.tokens) == tokens.run(live, of_live, o.tokens);
    const bool all_same = group.vote(same, "a step of the trace");
    const std::vector<std::int64_t> counts = live.take_counts();
    const std::vector<double> loads(counts.begin(), counts.end());
    EplbLiveStep now{.fixed = eplb::max_over_mean(loads, linear.layers[0], o.ranks),
                     .live = eplb::max_over_mean(loads, balancer.placement().layers[0], o.ranks)};
    balancer.add(0, counts);
    for (const eplb::Migration& m : balancer.end_iteration()) {
      live.migrate(m.slots);
      balancer.applied(m);
      now.moves += std::int64_t(m.moves.size());
    }
    if (group.rank() != 0) continue;
    out.steps.push_back(now);
    out.differing_steps += !all_same;
  }
  if (group.rank() != 0) return;
  out.migrations = balancer.migrations();
  out.expert_bytes = std::int64_t(live.part().routed().layout.bytes);
}

void check(const EplbLiveOptions& o) {
  o.trace.check("the trace");
  const std::int64_t experts = o.trace.num_experts();
  require(o.ranks >= 2 && o.ranks <= comm::kMaxGroupRanks, "live balancing: ranks = ", o.ranks,
          " is outside 2..", comm::kMaxGroupRanks, "; one rank balances nothing");
  require(o.slots >= experts && o.slots % o.ranks == 0, "live balancing: slots = ", o.slots,
          " must be at least the ", experts, " experts and divide by the ", o.ranks, " ranks");
  require(experts <= kMaxRoutedExperts, "live balancing: ", experts, " experts exceed the limit ",
          kMaxRoutedExperts);
  require(o.tokens >= 1 && o.tokens <= (1 << 16), "live balancing: tokens = ", o.tokens,
          " is outside 1..", 1 << 16);
}

}  // namespace

EplbLiveResult eplb_live(const EplbLiveOptions& o) {
  check(o);
  EplbLiveResult out;
  out.experts = o.trace.num_experts();
  const PreparedLayer prepared = prepared_layer(o);
  std::vector<comm::Group> groups =
      comm::make_thread_groups(int(o.ranks), comm::deadlines_of(resolve::environment()));
  comm::run_on_threads(groups, [&](comm::Group& group) { serve(group, prepared, o, out); });
  out.fixed = out.live = 0;
  for (const EplbLiveStep& s : out.steps) {
    out.fixed += s.fixed / double(out.steps.size());
    out.live += s.live / double(out.steps.size());
    out.moves += s.moves;
  }
  out.ok = out.differing_steps == 0;
  return out;
}

}  // namespace switchyard
