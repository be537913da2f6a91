// SPDX-License-Identifier: Apache-2.0
// Replaces one expert of a live layer; a mistake changes nothing.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

int main() {
  MoeLayer layer = MoeLayer::from_preset("tiny", {});
  const Problem& p = layer.problem();
  HostBuffer workspace(layer.workspace_bytes(1));
  std::vector<std::uint16_t> x(std::size_t(p.hidden), float_to_bf16(0.5f)), y(x.size());
  auto first_value = [&](std::int32_t expert) {
    std::vector<std::int32_t> ids = {expert, -1};
    std::vector<float> weights = {1, 0};
    ForwardArgs call;
    call.tokens = 1;
    call.hidden = x.data();
    call.out = y.data();
    call.hidden_stride = call.out_stride = p.hidden;
    call.routing = {.ids = ids.data(), .weights = weights.data()};
    call.workspace = workspace.bytes();
    layer.forward(call);
    return bf16_to_float(y[0]);
  };

  const float third = first_value(3), fourth = first_value(4);
  std::vector<std::uint16_t> weight(std::size_t(p.inter * p.hidden), float_to_bf16(0.02f));
  ExpertArrays arrays{.gate = weight.data(), .up = weight.data(), .down = weight.data()};
  layer.update_expert(3, arrays);  // runs wholly before or after any forward beside it
  std::printf("expert 3: %s, expert 4: %s\n", first_value(3) == third ? "as before" : "new",
              first_value(4) == fourth ? "as before" : "new");
  try {
    layer.update_expert(9, arrays);
  } catch (const UsageError& error) {
    std::printf("%s\n", error.what());
    return first_value(4) == fourth ? 0 : 1;
  }
  return 1;
}
