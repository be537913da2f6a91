// SPDX-License-Identifier: Apache-2.0
// The caller brings all memory. No token and a skipped choice are legal; mistakes are one-line
// errors after which the layer is as good as before.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

static void attempt(const char* what, const MoeLayer& layer, const ForwardArgs& call) {
  try {
    layer.forward(call);
    std::printf("%s: ran\n", what);
  } catch (const UsageError& error) {
    std::printf("%s: %s\n", what, error.what());
  }
}

int main() {
  MoeLayer layer = MoeLayer::from_preset("tiny", {});
  const std::int64_t hidden = layer.problem().hidden, tokens = 2;
  HostBuffer workspace(layer.workspace_bytes(tokens));
  std::vector<std::uint16_t> x(std::size_t(tokens * hidden), float_to_bf16(1)), y(x.size());
  std::vector<std::int32_t> ids = {3, -1, -1, -1};  // the second token chooses no expert
  std::vector<float> weights = {0.5f, 7, 7, 7};     // what stands beside -1 is never read
  ForwardArgs call;
  call.tokens = tokens;
  call.hidden = x.data();
  call.out = y.data();
  call.hidden_stride = call.out_stride = hidden;
  call.routing = {.ids = ids.data(), .weights = weights.data()};
  call.workspace = workspace.bytes();
  attempt("two tokens", layer, call);
  std::printf("  the skipped token's output is %g\n", bf16_to_float(y.back()));

  call.tokens = 0;
  attempt("no token", layer, call);
  call.tokens = tokens;
  call.workspace = workspace.bytes().first(1024);
  attempt("a small workspace", layer, call);
  call.workspace = workspace.bytes();
  ids[1] = 8;
  attempt("expert 8 of 8", layer, call);
  ids[1] = 0;
  attempt("mended", layer, call);
}
