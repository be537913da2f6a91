// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::eplb {

/// The most layers that a table may have.
inline constexpr std::int64_t kMaxLayers = 4096;
/// The largest load of one expert.
inline constexpr double kMaxLoad = 1e15;

/// How much each expert of each layer was used: any measure that adds up, usually tokens.
///
/// Shapes:  layers [num_layers][num_experts], not ragged, at least one of each.
/// Errors:  check() throws UsageError naming `where`, layer, expert and value.
struct LoadTable {
  std::vector<std::vector<double>> layers;

  void check(std::string_view where) const;
  /// Experts of a layer; 0 for an empty table.
  std::int64_t num_experts() const {
    return layers.empty() ? 0 : std::int64_t(layers.front().size());
  }
};

/// Reads a table of loads >= 0. CSV: one line per layer, one number per expert; blank lines and
/// lines that start with # are skipped. JSON, when the first character is { or [: an object whose
/// "loads" is [layers][experts]; its other keys are left alone.
///
/// Errors:  UsageError naming `where`, and line and column (CSV) or layer and expert (JSON).
LoadTable parse_loads(std::string_view text, std::string_view where);
/// The same from a file.
LoadTable read_loads(const std::string& path);

}  // namespace switchyard::eplb
