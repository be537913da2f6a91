// SPDX-License-Identifier: Apache-2.0
// libFuzzer's entry to the target SWITCHYARD_FUZZ_TARGET; a fault ends the process, which keeps the
// input.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const switchyard::fuzz::Target& target =
      switchyard::fuzz::find_target(SWITCHYARD_FUZZ_TARGET);
  auto outcome = switchyard::fuzz::run_target(target, {reinterpret_cast<const char*>(data), size});
  if (!outcome.fault.empty()) {
    std::fprintf(stderr, "fault: %s\n", outcome.fault.c_str());
    std::abort();
  }
  return 0;
}
