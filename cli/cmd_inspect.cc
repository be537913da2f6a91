// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/output.h"
#include "switchyard/api/checkpoint.h"
#include "switchyard/base/text.h"

namespace switchyard::cli {
namespace {

std::string word(const Json& json, const char* key) { return json[key].get<std::string>(); }

std::string number(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return value.is_null() ? "-" : value.dump();
}

std::string megabytes(const Json& bytes) { return fixed(bytes.get<double>() / 1e6, 3); }

/// "DeepSeekV3" of the full text of a recipe; --json has all of it.
std::string head_of(const std::string& text) { return text.substr(0, text.find('(')); }

std::string layers_table(const Json& layers) {
  Table table(
      {">layer", "block", "format", ">H", ">I", ">E", ">k", "routing", ">MB", ">shared", "state"});
  for (const Json& l : layers)
    table.add({number(l["layer"]), word(l, "block"), word(l, "format"), number(l["hidden"]),
               number(l["inter"]), number(l["experts"]), number(l["top_k"]),
               head_of(word(l, "routing")), megabytes(l["bytes"]),
               l["shared"].is_null() ? "-" : number(l["shared"]["inter"]),
               !l["present"] ? "absent"
               : !l["ok"]    ? "FAULTY"
               : l["mtp"]    ? "ok, MTP"
                             : "ok"});
  return table.str();
}

std::string range_text(const Json& projection, const char* key) {
  if (!projection.contains(key)) return "-";
  return cat(number(projection[key]["min"]), " .. ", number(projection[key]["max"]));
}

/// Empty when no projection of any layer has scales.
std::string scales_table(const Json& layers) {
  Table table(
      {">layer", "projection", ">MB", ">scales", "range", ">zeros", "global scale", "input scale"});
  bool any = false;
  for (const Json& l : layers)
    for (const Json& p : l["projections"]) {
      if (!p.contains("scales") && !p.contains("global_scale") && !p.contains("input_scale"))
        continue;
      any = true;
      bool blocks = p.contains("scales");
      table.add({number(l["layer"]), word(p, "projection"), megabytes(p["bytes"]),
                 blocks ? number(p["scales"]["count"]) : "-", range_text(p, "scales"),
                 blocks ? number(p["scales"]["zeros"]) : "-", range_text(p, "global_scale"),
                 range_text(p, "input_scale")});
    }
  return any ? "\n" + table.str() : "";
}

std::string remarks(const Json& layer) {
  std::string out, where = cat("layer ", number(layer["layer"]), ": ");
  for (const char* list : {"missing", "extra", "odd"})
    for (const Json& f : layer[list]) out += cat(where, list, ": ", word(f, "text"), "\n");
  for (const char* list : {"anomalies", "notices"})
    for (const Json& text : layer[list]) out += cat(where, text.get<std::string>(), "\n");
  return out;
}

std::string directory_text(const Json& found) {
  std::string out = cat("family ", word(found, "family"), ", quantisation ", word(found, "schema"),
                        "\n\n", layers_table(found["layers"]), scales_table(found["layers"]));
  for (const Json& layer : found["layers"]) out += remarks(layer);
  return out;
}

std::string file_text(const Json& found) {
  Table table({"tensor", "type", "shape", ">bytes"});
  for (const Json& t : found["tensors"])
    table.add({word(t, "name"), word(t, "type"), t["shape"].dump(), number(t["bytes"])});
  return "\n" + table.str();
}

std::string text_of(const Json& found) {
  std::string out = cat(word(found, "path"), ": ", number(found["num_tensors"]), " tensors, ",
                        megabytes(found["file_bytes"]), " MB\n");
  out += found["kind"] == "directory" ? directory_text(found) : file_text(found);
  for (const Json& notice : found["notices"]) out += notice.get<std::string>() + "\n";
  return out;
}

Answer inspect_command(Arguments& args) {
  std::string path;
  bool json = false;
  args.positional("PATH", path, "Checkpoint directory, or one safetensors file");
  args.toggle("--json", json, "Print JSON");
  if (!args.parse()) return {kOk, args.help()};
  Json found = Json::parse(inspect_json(path));
  return {found["ok"] ? kOk : kFailed, json ? json_text(found) : text_of(found)};
}

}  // namespace

const Command kInspect = {
    .name = "inspect",
    .summary = "Lists MoE layers, formats, sizes, scales and odd tensors of a checkpoint",
    .example = "switchyard inspect DIR\nswitchyard inspect DIR/model.safetensors --json",
    .run = inspect_command};

}  // namespace switchyard::cli
