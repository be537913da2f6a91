// SPDX-License-Identifier: Apache-2.0
// Output before finalize, for an engine that fuses the rest; here the sum is done by hand.
#include <cmath>
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

int main() {
  BuildOptions options;
  options.routed_scaling_factor = 2.5f;
  MoeLayer layer = MoeLayer::from_preset("tiny", options);
  const std::int64_t tokens = 4, hidden = layer.problem().hidden, k = layer.problem().top_k();
  HostBuffer workspace(layer.workspace_bytes(tokens));
  std::vector<std::uint16_t> x(std::size_t(tokens * hidden), float_to_bf16(0.5f)), y(x.size());
  std::vector<std::uint16_t> rows(std::size_t(tokens * k * hidden));
  std::vector<float> weights(std::size_t(tokens * k));
  std::vector<std::int32_t> index(weights.size());
  Unfinalised parts{.rows = rows.data(), .weights = weights.data(), .index = index.data()};

  ForwardArgs call;
  call.tokens = tokens;
  call.hidden = x.data();
  call.hidden_stride = call.out_stride = hidden;
  call.workspace = workspace.bytes();
  call.unfinalised = &parts;
  layer.forward(call);
  call.unfinalised = nullptr;
  call.out = y.data();
  layer.forward(call);

  double worst = 0;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t h = 0; h < hidden; ++h) {
      float sum = 0;
      for (std::int64_t j = t * k; j < (t + 1) * k; ++j)
        if (index[j] >= 0) sum += weights[j] * bf16_to_float(rows[index[j] * hidden + h]);
      float finished = sum * parts.pending_factor;  // no shared expert here
      worst = std::fmax(worst, std::fabs(finished - bf16_to_float(y[t * hidden + h])));
    }
  std::printf("pending factor %g, largest difference %.1e\n", parts.pending_factor, worst);
  return worst < 0.05 ? 0 : 1;
}
