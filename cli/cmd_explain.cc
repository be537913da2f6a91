// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "cli/command.h"
#include "cli/layer_flags.h"
#include "cli/output.h"
#include "switchyard/api/machine.h"
#include "switchyard/base/nearest.h"

namespace switchyard::cli {
namespace {

constexpr Range kWidth{1, kMaxWidth};

template <std::size_t... i>
Activation activation_named(const std::string& word, std::index_sequence<i...>) {
  std::optional<Activation> out;
  std::vector<std::string> names;
  auto consider = [&](ActivationType type, Activation value) {
    names.emplace_back(to_string(type));
    if (names.back() == word) out = std::move(value);
  };
  (consider(ActivationType(i), std::variant_alternative_t<i, Activation>{}), ...);
  require(out.has_value(), "activation '", word, "' is unknown; ", suggest(word, names));
  return *out;
}

/// The activation of that name with its published constants.
Activation to_activation(const std::string& word) {
  return activation_named(word, std::make_index_sequence<std::variant_size_v<Activation>>{});
}

void add_shape(Arguments& args, ProblemSketch& s) {
  args.integer("--hidden", kWidth, s.hidden, "H, width of the hidden states");
  args.integer("--inter", kWidth, s.inter, "I, width of an expert");
  args.integer("--latent", kWidth, s.latent, "Width that the experts read and write, if not H");
  args.integer("--experts", {1, kMaxRoutedExperts}, s.num_experts, "E, routed experts");
  args.integer("--top-k", {1, kMaxTopK}, s.top_k, "k, choices of a token");
  args.text(
      "--routing-method", [&](const std::string& v) { s.routing = to_routing_method(v); },
      "Routing recipe, e.g. Renormalize or DeepSeekV3");
  args.text(
      "--activation", [&](const std::string& v) { s.activation = to_activation(v); },
      "What stands between the projections, e.g. swiglu");
  args.positive("--factor", s.routed_scaling_factor, "Routed scaling factor");
  args.integer("--shared", {0, kMaxRoutedExperts}, s.num_shared, "Shared experts");
  args.integer("--shared-inter", {0, kMaxWidth}, s.shared_inter, "Their joint width");
}

void add_modes(Arguments& args, ProblemSketch& s) {
  args.text(
      "--format", [&](const std::string& v) { s.format = v; }, "Format of the routed experts",
      "FORMAT");
  args.text(
      "--dtype", [&](const std::string& v) { s.dtype = to_dtype(v); },
      "Hidden states: bf16, fp16 or f32", "DTYPE");
  args.text(
      "--activations", [&](const std::string& v) { s.activations = to_activation_mode(v); },
      "format, bf16 or f32", "MODE");
  args.text(
      "--combine", [&](const std::string& v) { s.combine = to_combine_precision(v); },
      "Precision of the combine: bf16, fp8 or nvfp4", "P");
}

struct ExplainFlags {
  ExplainOptions options;
  RankFlags ranks;
  std::optional<Device> device;
  bool expert_bias = false;
  bool json = false;

  void add(Arguments& args) {
    args.text("--preset", options.preset, "A published shape");
    args.text("--checkpoint", options.checkpoint, "A checkpoint directory: every MoE layer", "DIR");
    args.integer("--layer", kLayer, options.layer, "Only this layer of the checkpoint");
    add_shape(args, options.sketch);
    args.toggle("--expert-bias", expert_bias, "The experts have biases");
    add_modes(args, options.sketch);
    args.text(
        "--device", [this](const std::string& v) { device = to_device(v); }, "Pins cpu or cuda",
        "DEVICE");
    args.integer(
        "--sm", {50, 999}, [this](std::int64_t v) { options.sm = int(v); },
        "Explains for a GPU of this architecture, e.g. 90; none is needed here");
    args.text("--leaf", options.leaf, "Pins the leaf: an id, or a part of one", "ID");
    args.text("--prefer", options.prefer, "Prefers a device, or an ancestor's backend by its word");
    ranks.add(args);
    args.toggle("--json", json, "Print JSON");
  }

  void finish() {
    if (expert_bias) options.sketch.expert_bias = true;
    options.deployment = ranks.deployment();
    options.comm = ranks.comm;
    options.device_pinned = device.has_value();
    options.deployment.device = device.value_or(Device::kCpu);
  }
};

Answer explain_command(Arguments& args) {
  ExplainFlags flags;
  flags.add(args);
  if (!args.parse()) return {kOk, args.help()};
  flags.finish();
  Explanation found = explain(flags.options);
  int status = found.served ? kOk : kFailed;
  return {status, flags.json ? json_text(Json::parse(found.json)) : found.text};
}

}  // namespace

const Command kExplain = {
    .name = "explain",
    .summary = "Says which leaf would serve a layer, and why not every other",
    .example =
        "switchyard explain --preset deepseek-v3 --format nvfp4 --device cuda --sm 90\n"
        "switchyard explain --hidden 4096 --inter 1536 --format w4a16_mxfp4\n"
        "switchyard explain --checkpoint DIR --layer 3 --json",
    .run = explain_command};

}  // namespace switchyard::cli
