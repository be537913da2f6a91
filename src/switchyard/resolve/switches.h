// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard::resolve {

/// What becomes of an environment variable that we know.
enum class SwitchStatus { kHonoured, kAlias, kRetired };

/// "honoured", "alias" or "retired".
std::string_view to_string(SwitchStatus status);

/// One row of the only table of switches.
struct Switch {
  std::string_view name;
  SwitchStatus status = SwitchStatus::kHonoured;
  std::string_view replacement{};    // alias: the honoured name; retired: what always runs instead
  bool in_fingerprint = false;       // honoured only: must ranks agree on it?
  std::string_view default_value{};  // honoured only
  std::string_view doc{};            // one sentence
  /// Honoured only: the canonical spelling of a value. Errors: UsageError with the legal values.
  std::string (*canonical)(std::string_view name, std::string_view value) = nullptr;
};

/// Every switch: the honoured ones, then aliases, then the retired.
std::span<const Switch> switch_table();

/// Environment variables as (name, value).
using Variables = std::vector<std::pair<std::string, std::string>>;

/// A warning and the key under which a process gives it once.
struct SwitchWarning {
  std::string key;
  std::string text;
};

/// What the switches among some variables amount to.
struct SwitchReading {
  Variables flags;        // honoured, in the fingerprint, sorted, defaults filled in
  Variables local_flags;  // honoured, not in the fingerprint, sorted, defaults filled in
  std::vector<SwitchWarning> warnings;  // of aliases, retired, misspelt, a timeout that follows
};

/// Reads the switches; an empty value counts as unset. A retired or misspelt switch adds a warning
/// and changes nothing else. Names that start with SWITCHYARD_TEST_ belong to the tests and are
/// skipped. Errors: UsageError for an illegal value, an alias that contradicts its replacement, or
/// a serving timeout longer than the warm-up's.
SwitchReading read_switches(const Variables& variables);

}  // namespace switchyard::resolve
