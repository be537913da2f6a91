// SPDX-License-Identifier: Apache-2.0
// Routing that the caller did: the layer's own choice is read out and handed in again.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

int main() {
  MoeLayer layer = MoeLayer::from_preset("tiny", {});
  const Problem& p = layer.problem();
  const std::int64_t tokens = 16;
  HostBuffer workspace(layer.workspace_bytes(tokens));
  std::vector<std::uint16_t> x(std::size_t(tokens * p.hidden)), y(x.size()), z(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float_to_bf16(float(i * 7 % 31) / 8 - 2);
  std::vector<std::int32_t> ids(std::size_t(tokens * p.top_k()));
  std::vector<float> weights(ids.size());

  ForwardArgs call;
  call.tokens = tokens;
  call.hidden = x.data();
  call.out = y.data();
  call.hidden_stride = call.out_stride = p.hidden;
  call.ids_out = ids.data();
  call.weights_out = weights.data();
  call.workspace = workspace.bytes();
  layer.forward(call);  // routes by itself
  std::printf("token 0 goes to experts %d and %d with %.3f and %.3f\n", ids[0], ids[1], weights[0],
              weights[1]);

  call.ids_out = nullptr;
  call.weights_out = nullptr;
  call.routing = {.ids = ids.data(), .weights = weights.data()};
  call.out = z.data();
  layer.forward(call);  // takes the caller's
  std::printf("the same bits: %s\n", y == z ? "yes" : "no");
  return y == z ? 0 : 1;
}
