// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"
#include "cli/output.h"
#include "switchyard/api/machine.h"

namespace switchyard::cli {
namespace {

Answer doctor_command(Arguments& args) {
  std::optional<Device> device;
  bool json = false;
  args.text(
      "--device", [&](const std::string& v) { device = to_device(v); },
      "Only this one: cpu or cuda", "DEVICE");
  args.toggle("--json", json, "Print JSON");
  if (!args.parse()) return {kOk, args.help()};
  Explanation found = doctor(device);
  bool no_gpu = device == Device::kCuda && environment().num_gpus == 0;
  int status = no_gpu ? kNoDevice : found.served ? kOk : kFailed;
  return {status, json ? json_text(Json::parse(found.json)) : found.text};
}

}  // namespace

const Command kDoctor = {.name = "doctor",
                         .summary = "Says what this machine can run, and why not",
                         .example = "switchyard doctor\nswitchyard doctor --device cuda --json",
                         .run = doctor_command};

}  // namespace switchyard::cli
