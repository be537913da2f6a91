// SPDX-License-Identifier: Apache-2.0
// A layer whose experts are spread over ranks: here threads, with mpirun processes. Each rank has
// tokens of its own; dispatch, experts and combine are one forward.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

/// One rank's end of two layers, and a forward through both.
std::vector<std::uint16_t> serve(Rank& rank) {
  RankBuildOptions options;
  options.max_tokens = 16;
  std::vector<RankMoeLayer> layers;  // share threads and the memory of the exchange
  for (options.build.seed = 1; options.build.seed <= 2; ++options.build.seed)
    layers.push_back(RankMoeLayer::from_preset(rank, "tiny", options));
  if (rank.number() == 0) std::printf("%d ranks, %s\n", rank.size(), layers[0].strategy().c_str());

  const std::int64_t tokens = 1 + rank.number(), hidden = layers[0].problem().hidden;
  std::vector<std::uint16_t> x(std::size_t(tokens * hidden), float_to_bf16(0.5f)), y(x.size());
  HostBuffer workspace(layers[0].workspace_bytes());
  for (RankMoeLayer& layer : layers) {
    ForwardArgs call;
    call.tokens = tokens;
    call.hidden = x.data();
    call.out = y.data();
    call.hidden_stride = call.out_stride = hidden;
    call.workspace = workspace.bytes();
    layer.forward(call);  // all ranks call, those without tokens too
    x = y;
  }
  return {y.begin(), y.begin() + hidden};
}

int main() {
  Processes processes;
  if (processes.size() > 1) {
    Rank rank(processes);
    return serve(rank).empty() ? 1 : 0;
  }
  std::vector<std::vector<std::uint16_t>> first(4);
  on_rank_threads(4, [&](Rank& rank) { first[std::size_t(rank.number())] = serve(rank); });
  // Equal tokens have equal bits, whichever rank they come from.
  bool same = true;
  for (const auto& row : first) same = same && row == first[0];
  std::printf("first token %.1e, the same bits on all ranks: %s\n",
              double(bf16_to_float(first[0][0])), same ? "yes" : "no");
  return same ? 0 : 1;
}
