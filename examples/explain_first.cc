// SPDX-License-Identifier: Apache-2.0
// Asks what would run before anything is built; a pin that cannot be kept is refused with its
// reason.
#include <cstdio>

#include "switchyard/api/switchyard.h"

using namespace switchyard;

int main() {
  ExplainOptions question;
  question.preset = "deepseek-v3";
  question.sketch.format = "nvfp4";
  Explanation answer = explain(question);
  std::printf("on this machine: %s\n", answer.served ? "can serve" : "cannot serve");

  question.device_pinned = true;  // a GPU is asked for, and nothing may stand in for it
  question.deployment.device = Device::kCuda;
  question.sm = 80;
  answer = explain(question);
  std::printf("on a GPU of sm 80: %s\n", answer.served ? "can serve" : "cannot serve");

  BuildOptions options;
  options.format = "fp8";
  options.leaf = "cpu.nvfp4";  // a pin that contradicts the format
  try {
    MoeLayer::from_preset("tiny", options);
  } catch (const CannotServe& refusal) {
    std::printf("%s\n", refusal.what());  // report_json() has every leaf's answer
    return 0;
  }
  return 1;
}
