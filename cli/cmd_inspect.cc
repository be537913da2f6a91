// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"
#include "cli/output.h"
#include "switchyard/api/checkpoint.h"

namespace switchyard::cli {
namespace {

Answer inspect_command(Arguments& args) {
  std::string path;
  bool json = false;
  args.positional("PATH", path, "Checkpoint directory, or one safetensors file");
  args.toggle("--json", json, "Print JSON");
  if (!args.parse()) return {kOk, args.help()};
  Json found = Json::parse(inspect_json(path));
  return {kOk, json ? json_text(found) : found.dump(2) + "\n"};
}

}  // namespace

const Command kInspect = {
    .name = "inspect",
    .summary = "Lists MoE layers, formats, sizes, scales and odd tensors of a checkpoint",
    .example = "switchyard inspect DIR\nswitchyard inspect DIR/model.safetensors --json",
    .run = inspect_command};

}  // namespace switchyard::cli
