// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::checkpoint {

/// Typed reading of a config.json; remembers which fields were read, so that a field which concerns
/// the MoE block and that nobody read can be refused instead of ignored.
///
/// A `names` argument lists alternative spellings, "num_local_experts|num_experts"; null counts as
/// absent.
/// Errors:  every reader throws UsageError naming file, field, value and what it must be; two
///          spellings with different values are a contradiction.
class Config {
 public:
  /// Over the model's object; `where` is the file's path for error lines.
  Config(nlohmann::json object, std::string where);

  /// The file's path.
  const std::string& where() const { return where_; }
  /// True when one of `names` is there and not null.
  bool has(std::string_view names) const { return find(names) != nullptr; }
  /// True when one of `names` is there, be it null.
  bool present(std::string_view names) const;
  /// An integer in [low, high], or nothing.
  std::optional<std::int64_t> integer(std::string_view names, std::int64_t low,
                                      std::int64_t high) const;
  /// The same, where the field may be a list with an entry for each layer.
  std::optional<std::int64_t> integer_at(std::string_view names, std::int64_t layer,
                                         std::int64_t low, std::int64_t high) const;
  /// An integer in [low, high] that must be there; `what` says what it is.
  std::int64_t required(std::string_view names, std::int64_t low, std::int64_t high,
                        std::string_view what) const;
  /// A finite number, or `fallback`.
  double number(std::string_view names, double fallback) const;
  /// A boolean, or `fallback`.
  bool flag(std::string_view names, bool fallback) const;
  /// A string, or `fallback`.
  std::string text(std::string_view names, std::string_view fallback) const;
  /// A string that must be one of `served` ("a|b"), or `fallback`.
  std::string word(std::string_view names, std::string_view served,
                   std::string_view fallback) const;
  /// A list of strings, or nothing.
  std::optional<std::vector<std::string>> texts(std::string_view names) const;
  /// A list of integers >= 0, or nothing.
  std::optional<std::vector<std::int64_t>> integers(std::string_view names) const;
  /// Refuses the field when its value differs from `served`.
  void must_be(std::string_view names, const nlohmann::json& served, std::string_view why) const;

  /// The raw value, or null; marks it read.
  const nlohmann::json* find(std::string_view names) const;
  /// Throws for each field of the routing, activation and shared-expert vocabulary that is present,
  /// not neutral, and was never read: `family` does not know it.
  void refuse_unread(std::string_view family) const;

 private:
  [[noreturn]] void wrong(std::string_view name, const nlohmann::json& value,
                          const std::string& must) const;
  std::string spelling(std::string_view names) const;
  std::int64_t to_integer(std::string_view names, const nlohmann::json& value, std::int64_t low,
                          std::int64_t high) const;

  nlohmann::json object_;
  std::string where_;
  mutable std::set<std::string, std::less<>> read_;
};

/// Splits "a|b" into its parts; one empty part for an empty text.
std::vector<std::string_view> alternatives(std::string_view names);

}  // namespace switchyard::checkpoint
