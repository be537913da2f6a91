// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/placement_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "switchyard/base/check.h"
#include "switchyard/base/whole_file.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/mapped_file.h"

namespace switchyard::eplb {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "switchyard.placement";
constexpr int kVersion = 1;
constexpr std::size_t kMaxFileBytes = 256u << 20;
constexpr const char* kKeys[] = {"format",    "version",   "num_experts",
                                 "num_slots", "num_ranks", "layers"};

void check_keys(const json& root, std::string_view where) {
  require(root.is_object(), where, ": is ", root.type_name(),
          ", must be the object of a placement");
  for (const char* key : kKeys)
    require(root.contains(key), where, ": has no '", key, "'; it is no placement file, or damaged");
  for (const auto& [key, value] : root.items())
    require(std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys), where, ": key '",
            checkpoint::show_name(key), "' is unknown in version ", kVersion, "; remove it");
  require(root["format"] == kFormat, where, ": 'format' is ", checkpoint::show_json(root["format"]),
          ", must be \"", kFormat, "\"; it is another kind of file");
  require(root["version"] == kVersion, where, ": 'version' is ",
          checkpoint::show_json(root["version"]), ", this version reads ", kVersion,
          "; write the file again with eplb plan");
}

std::int64_t count_of(const json& root, const char* key, std::string_view where) {
  const json& value = root[key];
  bool good = value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t(kMaxSlots);
  require(good, where, ": '", key, "' is ", checkpoint::show_json(value),
          ", must be a whole number up to ", kMaxSlots);
  return value.get<std::int64_t>();
}

std::vector<std::int32_t> layer_of(const json& value, std::size_t layer, std::string_view where) {
  require(value.is_array(), where, ": layer ", layer, " is ", checkpoint::show_json(value),
          ", must be a list of expert ids");
  std::vector<std::int32_t> out;
  for (const json& id : value) {
    bool good = id.is_number_unsigned() && id.get<std::uint64_t>() <= std::uint64_t(INT32_MAX);
    require(good, where, ": layer ", layer, ", slot ", out.size(), " holds ",
            checkpoint::show_json(id), ", must be an expert id");
    out.push_back(id.get<std::int32_t>());
  }
  return out;
}

}  // namespace

std::string placement_text(const Placement& p) {
  std::string out = cat("{\"format\": \"", kFormat, "\", \"version\": ", kVersion,
                        ",\n \"num_experts\": ", p.num_experts, ", \"num_slots\": ", p.num_slots,
                        ", \"num_ranks\": ", p.num_ranks, ",\n \"layers\": [");
  for (std::size_t l = 0; l < p.layers.size(); ++l)
    out += (l == 0 ? "\n  " : ",\n  ") + json(p.layers[l]).dump();
  return out + "]}\n";
}

Placement parse_placement(std::string_view text, std::string_view where) {
  json root = checkpoint::parse_json(text, where);
  check_keys(root, where);
  Placement out{.num_experts = count_of(root, "num_experts", where),
                .num_slots = count_of(root, "num_slots", where),
                .num_ranks = count_of(root, "num_ranks", where),
                .layers = {}};
  const json& layers = root["layers"];
  require(layers.is_array(), where, ": 'layers' is ", checkpoint::show_json(layers),
          ", must be a list of lists");
  for (const json& layer : layers) out.layers.push_back(layer_of(layer, out.layers.size(), where));
  out.check(where);
  return out;
}

void write_placement(const Placement& placement, const std::string& path) {
  placement.check("placement");
  // Measured loads, which may stand there, cannot be had again.
  WholeFile file(path, {.name = "placement", .read = read_placement});
  file.out() << placement_text(placement);
  file.commit();
}

Placement read_placement(const std::string& path) {
  return parse_placement(checkpoint::read_text_file(path, kMaxFileBytes), path);
}

}  // namespace switchyard::eplb
