// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/loads.h"

#include <charconv>
#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/mapped_file.h"
#include "switchyard/core/routing.h"

namespace switchyard::eplb {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = 256u << 20;
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

bool is_load(double value) { return std::isfinite(value) && value >= 0 && value <= kMaxLoad; }

/// One cell; `column` counts characters from 1, as editors do.
double parse_cell(std::string_view cell, std::string_view where, std::size_t line,
                  std::size_t column) {
  std::string_view text = trimmed(cell);
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  require(whole && is_load(value), where, ": line ", line, ", column ", column, ": '",
          checkpoint::show_name(text), "' is not a load, a number from 0 to ", kMaxLoad,
          "; write one for each expert, with commas between; a line of headings starts with #");
  return value;
}

std::vector<double> parse_line(std::string_view text, std::string_view where, std::size_t line) {
  std::vector<double> row;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t end = std::min(text.find(',', at), text.size());
    row.push_back(parse_cell(text.substr(at, end - at), where, line, at + 1));
    require(row.size() <= std::size_t(kMaxRoutedExperts), where, ": line ", line, ", column ",
            at + 1, ": holds more than ", kMaxRoutedExperts,
            " experts, the limit; one line is one ", "layer");
    at = end + 1;
  }
  return row;
}

LoadTable parse_csv(std::string_view text, std::string_view where) {
  LoadTable out;
  std::size_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view content = text.substr(at, end - at);
    at = end + 1;
    ++line;
    if (trimmed(content).empty() || trimmed(content).front() == '#') continue;
    while (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    out.layers.push_back(parse_line(content, where, line));
    require(out.layers.back().size() == out.layers.front().size(), where, ": line ", line,
            ", column ", content.size() + 1, ": the layer has ", out.layers.back().size(),
            " experts and the first one ", out.layers.front().size(),
            "; every layer needs the same number");
    require(std::int64_t(out.layers.size()) <= kMaxLayers, where, ": line ", line,
            ", column 1: more than ", kMaxLayers, " layers, the limit; split the file");
  }
  return out;
}

std::vector<double> parse_layer(const json& value, std::string_view where, std::size_t layer) {
  require(value.is_array(), where, ": layer ", layer, " of 'loads' is ",
          checkpoint::show_json(value), ", must be a list of numbers");
  std::vector<double> row;
  for (const json& load : value) {
    bool good = load.is_number() && is_load(load.get<double>());
    require(good, where, ": layer ", layer, ", expert ", row.size(), " of 'loads' is ",
            checkpoint::show_json(load), ", must be a number from 0 to ", kMaxLoad);
    row.push_back(load.get<double>());
  }
  return row;
}

/// What was found where an object with 'loads' is wanted.
std::string form_of(const json& root) {
  if (!root.is_array()) return "is an object without a list 'loads';";
  const bool cases = !root.empty() && root.front().is_object() && root.front().contains("loads");
  return cases ? cat("is a list of ", root.size(),
                     " objects that each have 'loads'; give one of them as a file of its own, or")
               : "is a list that nothing names 'loads';";
}

LoadTable parse_object(std::string_view text, std::string_view where) {
  json root = checkpoint::parse_json(text, where);
  auto loads = root.find("loads");
  require(loads != root.end() && loads->is_array(), where, ": ", form_of(root),
          " write {\"loads\": [[layer 0's experts], ...]}");
  LoadTable out;
  for (const json& layer : *loads)
    out.layers.push_back(parse_layer(layer, where, out.layers.size()));
  return out;
}

}  // namespace

void LoadTable::check(std::string_view where) const {
  require(!layers.empty() && num_experts() > 0, where,
          ": holds no load; one row per layer, one number per expert");
  require(std::int64_t(layers.size()) <= kMaxLayers, where, ": holds ", layers.size(),
          " layers, the limit is ", kMaxLayers, "; split it");
  require(num_experts() <= kMaxRoutedExperts, where, ": holds ", num_experts(),
          " experts a layer, the limit is ", kMaxRoutedExperts, "; rows are layers");
  for (std::size_t l = 0; l < layers.size(); ++l) {
    require(std::int64_t(layers[l].size()) == num_experts(), where, ": layer ", l, " has ",
            layers[l].size(), " experts and layer 0 has ", num_experts(),
            "; every layer needs the same number");
    for (std::size_t e = 0; e < layers[l].size(); ++e)
      require(is_load(layers[l][e]), where, ": layer ", l, ", expert ", e, " has load ",
              layers[l][e], ", must be from 0 to ", kMaxLoad);
  }
}

LoadTable parse_loads(std::string_view text, std::string_view where) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // spreadsheets write it
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::size_t first = text.find_first_not_of(" \t\r\n");
  bool is_json = first != std::string_view::npos && (text[first] == '{' || text[first] == '[');
  LoadTable out = is_json ? parse_object(text, where) : parse_csv(text, where);
  out.check(where);
  return out;
}

LoadTable read_loads(const std::string& path) {
  return parse_loads(checkpoint::read_text_file(path, kMaxFileBytes), path);
}

}  // namespace switchyard::eplb
