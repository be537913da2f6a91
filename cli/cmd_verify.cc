// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"
#include "cli/layer_flags.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/tactic_json.h"
#include "switchyard/api/judge.h"
#include "switchyard/base/nearest.h"

namespace switchyard::cli {
namespace {

struct VerifyFlags {
  std::string checkpoint;
  VerifyOptions options;
  BuildFlags build;
  bool json = false;

  void add(Arguments& args) {
    args.positional("DIR", checkpoint, "Checkpoint directory");
    args.text("--io", options.io,
              "File with hidden_states and output; random tokens and the oracle without", "FILE");
    args.integer("--layer", kLayer, options.layer, "Only this layer");
    args.integer(
        "--tokens", kTokens, [this](std::int64_t v) { options.tokens = v; },
        "T, tokens without --io (default 24)");
    args.toggle("--per-expert", options.per_expert,
                "Adds a table of the routed experts: errors, static scales, what is odd");
    args.text("--dump-stages", options.dump_stages,
              "Writes the stages of one token, the leaf's and the oracle's, as safetensors",
              "FILE");
    args.integer("--row", kTokens, options.dump_row,
                 "The token of --dump-stages; the one farthest from the oracle by default");
    build.add(args);
    args.toggle("--json", json, "Print JSON");
  }
};

VerifyResult verify_layers(const VerifyFlags& flags) {
  ProgressBar bar("packing");
  VerifyOptions options = flags.options;
  options.calibrate = flags.build.calibrate;
  options.build = flags.build.options();
  options.build.progress = bar.callback();
  return verify(flags.checkpoint, options);
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json to_json(const std::vector<VerifiedExpert>& experts) {
  Json out = Json::array();
  auto scale = [](const std::optional<float>& s) { return s ? Json(*s) : Json(nullptr); };
  for (const VerifiedExpert& e : experts)
    out.push_back({{"expert", e.id},
                   {"rows", e.rows},
                   {"rel_l2_oracle", e.rel_l2_oracle},
                   {"rel_l2_unquantised", e.rel_l2_unquantised},
                   {"fc1_input_scale", scale(e.fc1_input_scale)},
                   {"fc2_input_scale", scale(e.fc2_input_scale)},
                   {"note", e.note}});
  return out;
}

Json to_json(const VerifiedLayer& v) {
  Json out = {
      {"layer", v.layer},
      {"block", v.block},
      {"format", show_format(v.format)},
      {"leaf", v.leaf},
      {"tokens", v.tokens},
      {"rel_l2", number_or_null(v.rel_l2)},
      {"rel_l2_oracle", v.rel_l2_oracle},
      {"budget",
       {{"rel_l2", number_or_null(v.budget_rel_l2)}, {"rel_l2_oracle", v.budget_rel_l2_oracle}}},
      {"ids_differing", v.ids_differing},
      {"ids_near_tie", v.ids_near_tie},
      {"codes", v.codes},
      {"codes_differing", v.codes_differing},
      {"worst_row", {{"row", v.worst_row}, {"rel_l2_oracle", v.worst_row_rel_l2}}},
      {"tactics", tactics_json(v.tactics)},
      {"ok", v.ok},
      {"notices", v.notices}};
  if (!v.experts.empty()) out["experts"] = to_json(v.experts);
  return out;
}

std::string json_of(const VerifyFlags& flags, const VerifyResult& result) {
  Json layers = Json::array();
  for (const VerifiedLayer& layer : result.layers) layers.push_back(to_json(layer));
  return json_text({{"ok", result.ok},
                    {"checkpoint", flags.checkpoint},
                    {"layers", std::move(layers)},
                    {"notices", result.notices}});
}

std::string cell(const std::optional<double>& value) { return value ? error_text(*value) : "-"; }

std::string experts_text(const VerifiedLayer& v) {
  if (v.experts.empty()) return "";
  Table table(
      {">expert", ">rows", ">to oracle", ">to unquantised", ">FC1 scale", ">FC2 scale", "note"});
  auto scale = [](const std::optional<float>& s) { return s ? error_text(double(*s)) : "-"; };
  for (const VerifiedExpert& e : v.experts)
    table.add({cat(e.id), cat(e.rows), error_text(e.rel_l2_oracle),
               error_text(e.rel_l2_unquantised), scale(e.fc1_input_scale), scale(e.fc2_input_scale),
               e.note});
  return cat("\nlayer ", v.layer, ", each routed expert by itself\n", table.str());
}

std::string text_of(const VerifyResult& result) {
  std::string out;
  std::vector<std::string> notes;
  const auto& all = result.layers;
  for (std::size_t i = 0; i < all.size();) {
    out += cat(i == 0 ? "" : "\n", "leaf  ", all[i].leaf, ", format ", show_format(all[i].format),
               "\n");
    Table table({">layer", "block", ">tokens", ">to output", ">limit", ">to oracle", ">limit",
                 ">ids off", ">codes off", "ok"});
    for (std::string leaf = all[i].leaf; i < all.size() && all[i].leaf == leaf; ++i) {
      const VerifiedLayer& v = all[i];
      table.add({cat(v.layer), v.block, cat(v.tokens), cell(v.rel_l2), cell(v.budget_rel_l2),
                 error_text(v.rel_l2_oracle), error_text(v.budget_rel_l2_oracle),
                 cat(v.ids_differing), cat(v.codes_differing), v.ok ? "ok" : "FAILED"});
      if (tuned(v.tactics))
        notes.push_back(cat("layer ", v.layer, ": ", tactics_text(v.tactics), "\n"));
      for (const std::string& notice : v.notices)
        notes.push_back(cat("layer ", v.layer, ": ", notice, "\n"));
    }
    out += table.str();
  }
  out += join(notes, "");
  for (const VerifiedLayer& v : all) out += experts_text(v);
  for (const std::string& notice : result.notices) out += notice + "\n";
  return out;
}

Answer verify_command(Arguments& args) {
  VerifyFlags flags;
  flags.add(args);
  if (!args.parse()) return {kOk, args.help()};
  VerifyResult result = verify_layers(flags);
  return {result.ok ? kOk : kFailed, flags.json ? json_of(flags, result) : text_of(result)};
}

}  // namespace

const Command kVerify = {
    .name = "verify",
    .summary = "Compares a checkpoint's layers with a given output and with the oracle",
    .example =
        "switchyard verify DIR --io DIR/moe_io.safetensors\n"
        "switchyard verify DIR --format w4a8_mxfp4_mxfp8 --layer 3 --json\n"
        "switchyard verify DIR --layer 3 --per-expert --dump-stages stages.safetensors",
    .run = verify_command};

}  // namespace switchyard::cli
