// SPDX-License-Identifier: Apache-2.0
// Builds a layer from a checkpoint, runs it, and compares it with the built-in reference.
#include <cstdio>
#include <vector>

#include "switchyard/api/switchyard.h"
#include "switchyard/base/host_buffer.h"

using namespace switchyard;

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: first_layer CHECKPOINT\n"), 2;
  try {
    Checkpoint checkpoint = Checkpoint::open(argv[1]);
    const LayerEntry& entry = checkpoint.layers().front();
    MoeLayer layer = MoeLayer::from_checkpoint(checkpoint, entry.index, {});

    const std::int64_t tokens = 8, hidden = entry.hidden;
    std::vector<std::uint16_t> x(std::size_t(tokens * hidden)), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float_to_bf16(float(i % 13) - 6);
    HostBuffer workspace(layer.workspace_bytes(tokens));
    ForwardArgs call;
    call.tokens = tokens;
    call.hidden = x.data();
    call.hidden_stride = hidden;
    call.out = y.data();
    call.out_stride = hidden;
    call.workspace = workspace.bytes();
    layer.forward(call);
    std::printf("layer %d, %s: %d x %d values\n", int(entry.index), layer.leaf().c_str(),
                int(tokens), int(hidden));

    VerifyResult verdict = verify(argv[1], {});
    const VerifiedLayer& first = verdict.layers.front();
    std::printf("against the reference in double: %.1e, allowed are %.0e\n", first.rel_l2_oracle,
                first.budget_rel_l2_oracle);
    return verdict.ok ? 0 : 1;
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
