// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard::cli {

/// Keys stay in the order in which they are set.
using Json = nlohmann::ordered_json;

/// What every command's JSON starts with: version, commit, machine, fingerprint.
Json json_header();
/// json_header() followed by the keys of `body`, as printed by --json.
std::string json_text(const Json& body);

/// Rows of words in aligned columns, two blanks apart.
class Table {
 public:
  /// `heads` names the columns; a name that starts with '>' aligns its column to the right.
  explicit Table(std::vector<std::string> heads);
  /// Adds a row with one cell per column.
  void add(std::vector<std::string> cells);
  /// The table, each line ended by a newline and without blanks at its end.
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> right_;
};

/// "1.2e-05": three digits tell errors apart.
std::string error_text(double value);
/// `value` with `digits` decimals.
std::string fixed(double value, int digits);

}  // namespace switchyard::cli
