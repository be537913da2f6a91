// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard::checkpoint {

/// The deepest nesting of objects and lists that a file may have.
inline constexpr std::size_t kMaxJsonDepth = 64;

/// Parses UTF-8 JSON strictly: duplicate keys, trailing text and more than kMaxJsonDepth levels are
/// errors.
/// Errors: UsageError naming `where`, the byte offset or the duplicate key.
nlohmann::json parse_json(std::string_view text, std::string_view where);

/// The same for a config file, where Python writers leave bare Infinity and NaN: read as those
/// words in quotes, so that no field takes its default for them.
/// Errors: as parse_json, and UsageError when the top level is no object.
nlohmann::json read_config_file(const std::string& path);

/// One value as an error line shows it: compact, without line breaks, cut at 60 characters.
std::string show_json(const nlohmann::json& value);

/// A name from a file as an error line shows it: control characters replaced, cut at 200
/// characters.
std::string show_name(std::string_view name);

}  // namespace switchyard::checkpoint
