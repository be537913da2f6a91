// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace switchyard::cli {

struct Command;

/// Inclusive bounds of an integer flag.
struct Range {
  std::int64_t low;
  std::int64_t high;
};

/// A command's flags: declared first, then parsed once. Values are read strictly (decimal, whole,
/// in range), because a silently misread number gives a fluent wrong answer.
///
/// Errors:  parse() throws UsageError, one line, for an unknown flag (with the near ones), a
/// missing
///          or surplus value, and every value that its flag cannot take.
class Arguments {
 public:
  /// The words behind the command's name; they must outlive this.
  Arguments(const Command& command, int count, const char* const* words);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  /// A flag without a value.
  void toggle(const std::string& name, bool& out, const std::string& help);
  /// A flag with a non-empty text, handed to `take`, which may throw UsageError.
  void text(const std::string& name, std::function<void(const std::string&)> take,
            const std::string& help, const std::string& value_name = "NAME");
  /// The same, kept as it is.
  void text(const std::string& name, std::string& out, const std::string& help,
            const std::string& value_name = "NAME");
  /// A whole number.
  void integer(const std::string& name, Range range, std::function<void(std::int64_t)> take,
               const std::string& help);
  /// The same, kept as it is.
  void integer(const std::string& name, Range range, std::optional<std::int64_t>& out,
               const std::string& help);
  /// Words between commas, each handed to `take`, which may throw UsageError; none twice.
  void words(const std::string& name, std::function<void(const std::string&)> take,
             const std::string& help, const std::string& value_name);
  /// Whole numbers between commas, none twice; replaces `out`.
  void integers(const std::string& name, Range range, std::vector<std::int64_t>& out,
                const std::string& help);
  /// A finite decimal number above 0.
  void positive(const std::string& name, std::optional<float>& out, const std::string& help);
  /// A finite decimal number from 0 on.
  void not_negative(const std::string& name, std::optional<float>& out, const std::string& help);
  /// A positional argument; it must be given. Several are filled in the order of declaration.
  void positional(const std::string& name, std::string& out, const std::string& help);
  /// Parses the words, then reads the switches. False, and no switch read, when help was asked for.
  bool parse();
  /// The command line as it was given, for a result's own record.
  std::string line() const;
  /// The help text: usage, flags, examples.
  std::string help() const;

 private:
  void refuse_extras() const;
  std::string known_near(const std::string& flag) const;

  const Command& command_;
  int count_;
  const char* const* words_;
  std::unique_ptr<CLI::App> app_;
  std::vector<std::pair<std::string, std::string*>> positionals_;
};

}  // namespace switchyard::cli
