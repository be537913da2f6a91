// SPDX-License-Identifier: Apache-2.0
// A layer whose experts move to where the load is: counts of all ranks, a plan, migrations.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

constexpr std::int64_t kRanks = 4, kSlots = 12, kTokens = 16;

/// One forward, in which every token wants expert 5 and one other.
void step(RankMoeLayer& layer, std::vector<std::uint16_t>& x, std::vector<std::uint16_t>& y) {
  const std::int64_t hidden = layer.problem().hidden, k = layer.problem().top_k();
  std::vector<std::int32_t> ids(std::size_t(kTokens * k));
  const std::vector<float> weights(ids.size(), 0.5f);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    ids[std::size_t(t * k)] = 5;
    ids[std::size_t(t * k + 1)] = std::int32_t(t % 4);
  }
  HostBuffer workspace(layer.workspace_bytes());
  ForwardArgs call;
  call.tokens = kTokens;
  call.hidden = x.data();
  call.out = y.data();
  call.hidden_stride = call.out_stride = hidden;
  call.routing.ids = ids.data();
  call.routing.weights = weights.data();
  call.workspace = workspace.bytes();
  layer.forward(call);
}

void serve(Rank& rank) {
  RankBuildOptions options;
  options.build.slots = kSlots;
  options.max_tokens = kTokens;
  options.balanced = true;
  RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", options);
  const std::int64_t experts = layer.problem().num_experts();
  eplb::Balancer balancer({experts, kSlots, kRanks, {layer.slot_experts()}},
                          {.window = 2, .warm_up = 2, .interval = 2});
  std::vector<std::uint16_t> x(std::size_t(kTokens * layer.problem().hidden));
  for (std::size_t i = 0; i < x.size(); ++i)  // replicas are chosen by the token's first values
    x[i] = float_to_bf16(float((i * 37 + std::size_t(rank.number()) * 11) % 61) / 61);
  std::vector<std::uint16_t> y(x.size());
  std::vector<double> balances;
  for (int i = 0; i < 4; ++i) {
    step(layer, x, y);
    const std::vector<std::int64_t> counts = layer.take_counts();  // of all ranks
    const std::vector<double> loads(counts.begin(), counts.end());
    balances.push_back(eplb::max_over_mean(loads, layer.slot_experts(), kRanks));
    balancer.add(0, counts);
    for (const eplb::Migration& m : balancer.end_iteration()) {
      layer.migrate(m.slots);  // packed weights travel, no bit of them changes
      balancer.applied(m);
    }
  }
  if (rank.number() == 0)
    std::printf("most of the mean load on a rank: %.2f, after %d migration %.2f\n", balances[0],
                int(balancer.migrations()), balances.back());
}

int main() { on_rank_threads(kRanks, serve); }
