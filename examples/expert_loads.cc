// SPDX-License-Identifier: Apache-2.0
// How many tokens each expert received: the layer counts in every forward, at no cost to speak of.
#include <cstdio>
#include <numeric>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

int main() {
  MoeLayer layer = MoeLayer::from_preset("tiny", {});
  const Problem& p = layer.problem();
  const std::int64_t tokens = 64;
  HostBuffer workspace(layer.workspace_bytes(tokens));
  std::vector<std::uint16_t> x(std::size_t(tokens * p.hidden)), y(x.size());
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = float_to_bf16(float((i * 2654435761u >> 7) % 101) / 25 - 2 + float(step));
    ForwardArgs call;
    call.tokens = tokens;
    call.hidden = x.data();
    call.out = y.data();
    call.hidden_stride = call.out_stride = p.hidden;
    call.workspace = workspace.bytes();
    layer.forward(call);
  }
  ExpertLoad load = layer.take_expert_load();  // and the counts start at zero again
  for (std::size_t e = 0; e < load.choices.size(); ++e)
    std::printf("expert %d: %d tokens\n", int(e), int(load.choices[e]));
  auto total = std::accumulate(load.choices.begin(), load.choices.end(), load.skipped);
  std::printf("%d in all, %d tokens x %d choices\n", int(total), int(load.tokens), int(p.top_k()));
  return total == 3 * tokens * p.top_k() && layer.expert_load().tokens == 0 ? 0 : 1;
}
