// SPDX-License-Identifier: Apache-2.0
// The command `switchyard`: finds the subcommand, and turns every outcome into an exit status.
#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <vector>

#include "cli/command.h"
#include "cli/failure.h"
#include "cli/output.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/api/processes.h"
#include "switchyard/base/nearest.h"
#include "switchyard/base/version.h"

namespace switchyard::cli {
namespace {

const std::array kCommands = {
    &kRun,        &kVerify,       &kExplain,       &kInspect,        &kDoctor,
    &kBenchLayer, &kBenchRouting, &kBenchExchange, &kBenchAllReduce, &kBenchCompare,
    &kTune,       &kEplbPlan,     &kEplbSimulate};

/// Subcommands of later versions: their names get a named answer.
struct Planned {
  std::string_view name, instead;
};
constexpr std::array<Planned, 1> kPlanned = {{
    {"quantize", "run and verify convert at load, see --format in switchyard run --help"},
}};

std::string help_text() {
  std::string out =
      cat("Switchyard runs the Mixture-of-Experts layers of real checkpoints and checks its "
          "results.\n\n"
          "Usage: switchyard COMMAND [FLAGS]\n\nCommands:\n");
  for (const Command* command : kCommands)
    out += cat("  ", command->name, std::string(16 - command->name.size(), ' '), command->summary,
               "\n");
  return out +
         "\nEach command takes --json and --help. Data goes to stdout, the rest to stderr.\n"
         "  --help, -h    Print this text\n"
         "  --version     Print version, commit and compiled twins; with --json as JSON\n\n"
         "Exit status: 0 ok, 1 a check failed, nothing can serve or stdout took not all,\n"
         "2 bad input or usage, or more than memory holds, 3 no GPU or peer where one is "
         "needed.\n\n"
         "Examples:\n"
         "  switchyard verify DIR --io DIR/moe_io.safetensors\n"
         "  switchyard run --preset qwen3-30b-a3b --format nvfp4 --tokens 1\n";
}

Answer version_answer(bool json) {
  if (json) return {kOk, json_text(Json::object())};
  return {kOk, cat("switchyard ", version(), " (commit ", commit(), ")\ntwins: ", twins(), "\n")};
}

/// What stands in front of, and behind, the blank of a name; the second is empty without one.
std::string_view first_word(std::string_view name) { return name.substr(0, name.find(' ')); }
std::string_view second_word(std::string_view name) {
  const std::size_t blank = name.find(' ');
  return blank == std::string_view::npos ? "" : name.substr(blank + 1);
}

/// The first words, each once.
std::vector<std::string> command_names() {
  std::vector<std::string> out;
  for (const Command* command : kCommands)
    if (out.empty() || out.back() != first_word(command->name))
      out.emplace_back(first_word(command->name));
  return out;
}

/// The second words of the commands that share the first one; none for a command of one word.
std::vector<std::string> kinds_of(std::string_view first) {
  std::vector<std::string> out;
  for (const Command* command : kCommands)
    if (first_word(command->name) == first && !second_word(command->name).empty())
      out.emplace_back(second_word(command->name));
  return out;
}

std::string help_of_kinds(std::string_view first) {
  std::string out = cat("Usage: switchyard ", first, " KIND [FLAGS]\n\nKinds:\n");
  for (const Command* command : kCommands)
    if (first_word(command->name) == first)
      out += cat("  ", second_word(command->name),
                 std::string(10 - second_word(command->name).size(), ' '), command->summary, "\n");
  return out + cat("\nEach kind takes --json and --help.\n");
}

/// What is not built cannot serve; the name itself is no mistake.
void refuse_planned(std::string_view name) {
  for (const Planned& planned : kPlanned)
    if (planned.name == name)
      throw CannotServe(cat("path_not_enabled: command '", name, "' is not built in version ",
                            version(), "; ", planned.instead),
                        "{}");
}

[[noreturn]] void refuse_kind(std::string_view first, std::string_view second) {
  refuse_planned(cat(first, " ", second));
  const std::vector<std::string> kinds = kinds_of(first);
  require(!second.empty(), first, " is given no kind; name one behind it: ", join(kinds));
  throw UsageError(cat(first, " kind '", second, "' is unknown; ", suggest(second, kinds)));
}

[[noreturn]] void refuse_command(std::string_view name) {
  refuse_planned(name);
  if (name.starts_with("-"))
    throw UsageError(cat("flag '", name, "' is unknown in front of a command; use --help, ",
                         "--version, or a command: ", join(command_names())));
  throw UsageError(cat("command '", name, "' is unknown; ", suggest(name, command_names())));
}

const Command* find_command(int argc, const char* const* argv) {
  for (const Command* command : kCommands) {
    const std::string_view second = second_word(command->name);
    if (argc > 1 && first_word(command->name) == argv[1] &&
        (second.empty() || (argc > 2 && second == argv[2])))
      return command;
  }
  return nullptr;
}

/// Other commands do not join the processes of a launcher: each would do all of it.
void refuse_launcher(const Command& command) {
  const bool joins = &command == &kRun || &command == &kBenchLayer || &command == &kBenchAllReduce;
  require(joins || launched_processes() == 1, "the launcher started ", launched_processes(),
          " processes, and this command runs in one; start it without, its "
          "ranks are threads");
}

Answer run_command(const Command& command, int count, const char* const* words) {
  const bool asks = std::any_of(
      words, words + count, [](std::string_view word) { return word == "--help" || word == "-h"; });
  if (!asks) refuse_launcher(command);
  Arguments args(command, count, words);
  return command.run(args);
}

Answer dispatch(int argc, const char* const* argv) {
  require(argc > 1, "no command is given; see switchyard --help, or try switchyard run");
  std::string_view first = argv[1];
  if (first == "--help" || first == "-h") return {kOk, help_text()};
  if (first == "--version") {
    bool json = argc == 3 && std::string_view(argv[2]) == "--json";
    require(argc == 2 || json, "argument '", argv[2], "' is one too many behind --version; only ",
            "--json may follow");
    return version_answer(json);
  }
  const std::string_view second = argc > 2 ? argv[2] : "";
  if (const Command* command = find_command(argc, argv)) {
    const int words = second_word(command->name).empty() ? 1 : 2;
    return run_command(*command, argc - words, argv + words);
  }
  if (kinds_of(first).empty()) refuse_command(first);
  if (second == "--help" || second == "-h") return {kOk, help_of_kinds(first)};
  refuse_kind(first, second);
}

/// One line on stderr, whatever the text holds.
int fail(int status, std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  std::fprintf(stderr, "switchyard: %s\n", text.c_str());
  return status;
}

int print(const Answer& answer) {
  std::size_t written = std::fwrite(answer.text.data(), 1, answer.text.size(), stdout);
  if (written != answer.text.size() || std::fflush(stdout) != 0)
    return fail(kFailed, "writing to stdout failed; the output is incomplete");
  return answer.status;
}

/// "verify: " when a command was recognised, so that the line says which call failed; the library's
/// own text may begin with the same name.
class Prefix {
 public:
  Prefix(int argc, const char* const* argv) {
    if (const Command* command = find_command(argc, argv)) name_ = cat(command->name, ": ");
  }
  std::string operator+(std::string_view text) const {
    return text.starts_with(name_) ? std::string(text) : name_ + std::string(text);
  }

 private:
  std::string name_;
};

int run_main(int argc, const char* const* argv) {
  const Prefix where(argc, argv);
  if (launched_rank() == 0)  // the others of a launcher's processes would only repeat it
    set_warning_sink([](std::string_view text) { fail(0, cat("warning: ", text)); });
  try {
    const Answer answer = dispatch(argc, argv);
    if (!answer.error.empty()) return fail(answer.status, where + answer.error);
    return print(answer);
  } catch (...) {
    const Failure failure = current_failure();
    return fail(failure.status, where + failure.text);
  }
}

}  // namespace
}  // namespace switchyard::cli

int main(int argc, char** argv) { return switchyard::cli::run_main(argc, argv); }
