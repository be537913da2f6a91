// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/rank_layers.h"

#include <algorithm>

namespace switchyard::test {

RankBuildOptions options_of(const Mode& m, int ranks) {
  RankBuildOptions o;
  o.build.parallel = m.parallel;
  o.build.tp = m.tp;
  o.build.ep = ranks / m.tp;
  o.build.threads = 1;
  o.max_tokens = test::kRankCapacity;
  return o;
}

RankBuildOptions options_of(const Way& way) {
  RankBuildOptions o = options_of(way.mode, 2);
  o.ending = way.ending;
  o.build.comm = way.comm;
  return o;
}

BuildOptions alone() {
  BuildOptions o;
  o.threads = 2;
  return o;
}

std::vector<std::byte> output_of(RankMoeLayer& layer, Call& call) {
  HostBuffer workspace(layer.workspace_bytes());
  ForwardArgs args = call.args();
  args.workspace = workspace.bytes();
  std::ranges::fill(workspace.bytes(), std::byte{0xc5});
  std::ranges::fill(call.out, std::byte{0xff});
  layer.forward(args);
  return call.out;
}

}  // namespace switchyard::test
