// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>

#include "switchyard/api/machine.h"
#include "switchyard/base/version.h"

namespace switchyard::cli {

Json json_header() {
  Environment env = environment();
  return {{"version", version()},
          {"commit", commit()},
          {"machine",
           {{"cpu_isa", to_string(running_tier(env))},
            {"cpu_best_isa", to_string(env.best_isa)},
            {"cpus", env.num_cpus},
            {"cpu_model", env.cpu_model},
            {"l3_bytes", env.l3_bytes},
            {"gpus", env.num_gpus},
            {"sm", env.sm},
            {"built_in", env.deps},
            {"twins", twins()}}},
          {"fingerprint", env.fingerprint()}};
}

std::string json_text(const Json& body) {
  Json out = json_header();
  out.update(body);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Table::Table(std::vector<std::string> heads) {
  for (std::string& head : heads) {
    right_.push_back(head.starts_with('>'));
    if (right_.back()) head.erase(0, 1);
  }
  rows_.push_back(std::move(heads));
}

void Table::add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::str() const {
  std::vector<std::size_t> widths(right_.size());
  for (const auto& row : rows_)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      std::string blanks(widths[c] - row[c].size(), ' ');
      out += (c > 0 ? "  " : "") + (right_[c] ? blanks + row[c] : row[c] + blanks);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

std::string error_text(double value) { return fmt::format("{:.2e}", value); }
std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

}  // namespace switchyard::cli
