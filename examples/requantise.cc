// SPDX-License-Identifier: Apache-2.0
// One checkpoint in several formats, converted at load: bytes of an expert, and distance to the
// reference of the same format.
#include <cstdio>

#include "switchyard/api/switchyard.h"

using namespace switchyard;

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: requantise CHECKPOINT\n"), 2;
  bool ok = true;
  for (const char* format : {"bf16", "fp8", "nvfp4"}) {
    VerifyOptions options;
    options.build.format = format;
    MoeLayer layer = MoeLayer::from_checkpoint(Checkpoint::open(argv[1]), 0, options.build);
    VerifyResult verdict = verify(argv[1], options);
    ok = ok && verdict.ok;
    std::printf("%-6s %8d bytes an expert, %.1e from the reference, %s\n", format,
                int(layer.expert_stored_bytes()), verdict.layers[0].rel_l2_oracle,
                verdict.ok ? "ok" : "FAILED");
  }
  return ok ? 0 : 1;
}
