// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "switchyard/checkpoint/module_pattern.h"

namespace switchyard::checkpoint {

/// True when `text` matches `glob`, in which `*` stands for any characters, dots included.
bool glob_match(std::string_view glob, std::string_view text);

/// Answers which entry of a quantisation list concerns a module
/// ("model.layers.3.mlp.experts.0.up_proj").
///
/// An entry concerns a module when it matches, from first to last character, the module's dotted
/// path or that of a module that holds it: "model.layers.1" concerns layer 1 and never layer 11.
class ModuleMatcher {
 public:
  /// With `suffixes`, an entry without `*` also matches the end of a path after a dot ("lm_head",
  /// "mlp.gate"), as Hugging Face's modules_to_not_convert does.
  explicit ModuleMatcher(bool suffixes = false) : suffixes_(suffixes) {}

  /// Adds an entry with the value that match() returns; the first entry of one spelling stays.
  void add(std::string pattern, std::string value);
  /// Adds a regular expression, tried on the module's own path only, behind all other entries.
  /// Errors: as ModulePattern.
  void add_expression(std::string_view expression, std::string value, std::string_view where);
  /// The value of an entry that concerns `module`, the innermost path first; null when there is
  /// none.
  const std::string* match(std::string_view module) const;
  /// All entries, sorted, for comparing two lists.
  std::vector<std::pair<std::string, std::string>> entries() const;

 private:
  const std::string* match_path(std::string_view path) const;

  bool suffixes_;
  std::unordered_map<std::string, std::string> exact_;
  std::vector<std::pair<std::string, std::string>> globs_;
  std::vector<std::pair<ModulePattern, std::string>> patterns_;
  std::vector<std::string> expressions_;  // beside patterns_
};

}  // namespace switchyard::checkpoint
