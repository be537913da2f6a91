// SPDX-License-Identifier: Apache-2.0
// What an inference engine does: ask first, build, bring the memory, run at several batch sizes.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

int main() {
  Problem problem;  // bf16, 64 experts of which each token chooses 6
  problem.hidden = 256;
  problem.inter = 128;
  problem.routing = make_routing(RoutingMethodType::kRenormalize, 64, 6);

  ExplainOptions question;
  question.sketch.hidden = problem.hidden;
  question.sketch.inter = problem.inter;
  question.sketch.num_experts = problem.num_experts();
  question.sketch.top_k = problem.top_k();
  if (!explain(question).served) return 1;

  std::vector<std::uint16_t> up(64 * 128 * 256, float_to_bf16(0.01f)), down = up, gate = up;
  std::vector<float> router(64 * 256);
  for (std::size_t i = 0; i < router.size(); ++i) router[i] = 0.01f * float(i % 17);
  MoeLayer layer = MoeLayer::from_arrays({.problem = problem,
                                          .gate = gate.data(),
                                          .up = up.data(),
                                          .down = down.data(),
                                          .router_weight = router.data()},
                                         {});
  std::printf("%s\n", layer.leaf().c_str());

  HostBuffer workspace(layer.workspace_bytes(4096));  // once, for every smaller batch too
  for (std::int64_t tokens : {1, 64, 4096}) {
    std::vector<std::uint16_t> x(std::size_t(tokens * 256), float_to_bf16(0.5f)), y = x;
    ForwardArgs call;
    call.tokens = tokens;
    call.hidden = x.data();
    call.out = y.data();
    call.hidden_stride = call.out_stride = 256;
    call.workspace = workspace.bytes();
    layer.forward(call);
    std::printf("%4d tokens: the first value is %.4f, the last %.4f\n", int(tokens),
                bf16_to_float(y.front()), bf16_to_float(y.back()));
  }
}
