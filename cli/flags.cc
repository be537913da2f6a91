// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "cli/command.h"
#include "switchyard/api/machine.h"
#include "switchyard/base/nearest.h"

namespace switchyard::cli {
namespace {

template <class T>
bool read_whole(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && stop == end;
}

std::string footer_of(const Command& command) {
  std::string out = "Examples:\n";
  std::string_view rest = command.example;
  while (!rest.empty()) {
    std::size_t end = std::min(rest.find('\n'), rest.size());
    out += cat("  ", rest.substr(0, end), "\n");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

/// `text` in lines that leave room for the column of flags on 100 columns.
std::string wrapped(const std::string& text) {
  constexpr std::size_t kFlagColumn = 24, kWidth = 100 - kFlagColumn;
  std::string out, line;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.find(' ', at), text.size());
    if (!line.empty() && line.size() + 1 + end - at > kWidth) {
      out += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + text.substr(at, end - at);
    at = end + 1;
  }
  return out + line;
}

/// CLI11's complaint in our words; its own texts do not say what to do.
std::string explain_error(const CLI::ParseError& error) {
  std::string text = error.what();
  std::string flag = text.substr(0, text.find(':'));
  if (text.find("missing") != std::string::npos) return flag + " needs a value behind it";
  if (text.find("At Most") != std::string::npos)
    return flag + " is given more than once; keep one of them";
  return text;
}

/// CLI11 reads "--json=true" as a number of times and fails on other words.
void refuse_values_of_toggles(const CLI::App& app, std::span<const char* const> words) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_expected_max() != 0) continue;
    for (const std::string_view word : words)
      require(!word.starts_with(option->get_name() + "="), option->get_name(),
              " takes no value, and '", word, "' gives it one; write ", option->get_name(),
              " or leave it out");
  }
}

}  // namespace

Arguments::Arguments(const Command& command, int count, const char* const* words)
    : command_(command),
      count_(count),
      words_(words),
      app_(std::make_unique<CLI::App>(std::string(command.summary),
                                      cat("switchyard ", command.name))) {
  app_->allow_extras();
  app_->set_help_flag("-h,--help", "Print this text");
  app_->footer(footer_of(command));
  app_->get_formatter()->column_width(24);
}

Arguments::~Arguments() = default;

void Arguments::toggle(const std::string& name, bool& out, const std::string& help) {
  app_->add_flag_function(
      name,
      [&out, name](std::int64_t count) {
        require(count >= 0 && count <= 1, name, " takes no value and is given once");
        out = count == 1;
      },
      wrapped(help));
}

void Arguments::text(const std::string& name, std::function<void(const std::string&)> take,
                     const std::string& help, const std::string& value_name) {
  app_->add_option_function<std::string>(
          name,
          [name, take = std::move(take)](const std::string& value) {
            require(!value.empty(), name, " is empty; give it a value or leave it out");
            take(value);
          },
          wrapped(help))
      ->type_name(value_name);
}

void Arguments::text(const std::string& name, std::string& out, const std::string& help,
                     const std::string& value_name) {
  text(
      name, [&out](const std::string& value) { out = value; }, help, value_name);
}

void Arguments::integer(const std::string& name, Range range,
                        std::function<void(std::int64_t)> take, const std::string& help) {
  text(
      name,
      [name, range, take = std::move(take)](const std::string& value) {
        std::int64_t number = 0;
        bool ok = read_whole(value, number) && number >= range.low && number <= range.high;
        require(ok, name, " = '", value, "' is not a whole number from ", range.low, " to ",
                range.high, "; give one in that range");
        take(number);
      },
      help, "N");
}

void Arguments::integer(const std::string& name, Range range, std::optional<std::int64_t>& out,
                        const std::string& help) {
  integer(
      name, range, [&out](std::int64_t value) { out = value; }, help);
}

void Arguments::words(const std::string& name, std::function<void(const std::string&)> take,
                      const std::string& help, const std::string& value_name) {
  text(
      name,
      [name, take = std::move(take)](const std::string& value) {
        std::vector<std::string> seen;
        for (std::size_t at = 0; at <= value.size();) {
          const std::size_t end = std::min(value.find(',', at), value.size());
          const std::string word = value.substr(at, end - at);
          require(!word.empty(), name, " = '", value, "' has an empty item; write a,b,c");
          require(std::find(seen.begin(), seen.end(), word) == seen.end(), name, " = '", value,
                  "' names '", word, "' twice; name it once");
          take(word);
          seen.push_back(word);
          at = end + 1;
        }
      },
      help, value_name);
}

void Arguments::integers(const std::string& name, Range range, std::vector<std::int64_t>& out,
                         const std::string& help) {
  auto first = std::make_shared<bool>(true);
  words(
      name,
      [name, range, first, &out](const std::string& word) {
        if (*first) out.clear();
        *first = false;
        std::int64_t number = 0;
        bool ok = read_whole(word, number) && number >= range.low && number <= range.high;
        require(ok, name, " has '", word, "', which is not a whole number from ", range.low, " to ",
                range.high, "; give numbers in that range, with commas between");
        require(std::find(out.begin(), out.end(), number) == out.end(), name, " has ", number,
                " twice; name it once");
        out.push_back(number);
      },
      help, "N,...");
}

void Arguments::positive(const std::string& name, std::optional<float>& out,
                         const std::string& help) {
  text(
      name,
      [name, &out](const std::string& value) {
        float number = 0;
        bool ok = read_whole(value, number) && std::isfinite(number) && number > 0;
        require(ok, name, " = '", value, "' is not a finite number above 0; give one, e.g. 2.5");
        out = number;
      },
      help, "X");
}

void Arguments::not_negative(const std::string& name, std::optional<float>& out,
                             const std::string& help) {
  text(
      name,
      [name, &out](const std::string& value) {
        float number = 0;
        bool ok = read_whole(value, number) && std::isfinite(number) && number >= 0;
        require(ok, name, " = '", value, "' is not a finite number from 0 on; give one, e.g. 0.02");
        out = number;
      },
      help, "X");
}

void Arguments::positional(const std::string& name, std::string& out, const std::string& help) {
  app_->add_option(name, out, wrapped(help))->type_name("");
  positionals_.emplace_back(name, &out);
}

bool Arguments::parse() {
  refuse_values_of_toggles(*app_, {words_, std::size_t(count_)});
  try {
    app_->parse(count_, words_);
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(cat(explain_error(error), "; see switchyard ", command_.name, " --help"));
  }
  refuse_extras();
  std::string usage;
  for (const auto& [name, value] : positionals_) usage += " " + name;
  for (const auto& [name, value] : positionals_)
    require(!value->empty(), name, " is missing; name it behind the command: switchyard ",
            command_.name, usage);
  environment();  // a mistake in a switch is answered by every command, with --json or without
  return true;
}

void Arguments::refuse_extras() const {
  std::vector<std::string> extras = app_->remaining();
  if (extras.empty()) return;
  const std::string& word = extras.front();
  if (word.starts_with("-") && word.size() > 1)
    throw UsageError(cat("flag '", word, "' is unknown; ", known_near(word), "see switchyard ",
                         command_.name, " --help"));
  throw UsageError(cat("argument '", word, "' is one too many; remove it, or put its flag in front",
                       " of it, see switchyard ", command_.name, " --help"));
}

std::string Arguments::known_near(const std::string& flag) const {
  std::vector<std::string> known;
  for (const CLI::Option* option : std::as_const(*app_).get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  std::vector<std::string> near = nearest(flag.substr(0, flag.find('=')), known);
  return near.empty() ? "" : cat("did you mean ", join(near, " or "), "? ");
}

std::string Arguments::line() const {
  std::string out = cat("switchyard ", command_.name);
  for (int i = 1; i < count_; ++i) out += cat(" ", words_[i]);
  return out;
}

std::string Arguments::help() const { return app_->help(); }

}  // namespace switchyard::cli
