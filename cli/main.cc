// SPDX-License-Identifier: Apache-2.0
// The command `switchyard`: finds the subcommand, and turns every outcome into an exit status.
#include <algorithm>
#include <array>
#include <cstdio>
#include <new>
#include <vector>

#include "cli/command.h"
#include "cli/output.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/moe_layer.h"
#include "switchyard/base/nearest.h"
#include "switchyard/base/version.h"

namespace switchyard::cli {
namespace {

const std::array kCommands = {&kRun, &kVerify, &kExplain, &kInspect, &kDoctor};

/// Subcommands of later versions: their names get a named answer.
struct Planned {
  std::string_view name, instead;
};
constexpr std::array<Planned, 4> kPlanned = {{
    {"bench", "run times one layer, see switchyard run --help"},
    {"tune", "each leaf has one kernel per instruction tier and nothing to choose between"},
    {"eplb", "every expert has one slot"},
    {"quantize", "run and verify convert at load, see --format in switchyard run --help"},
}};

std::string help_text() {
  std::string out =
      cat("Switchyard runs the Mixture-of-Experts layers of real checkpoints and checks its "
          "results.\n\n"
          "Usage: switchyard COMMAND [FLAGS]\n\nCommands:\n");
  for (const Command* command : kCommands)
    out += cat("  ", command->name, std::string(10 - command->name.size(), ' '), command->summary,
               "\n");
  return out +
         "\nEach command takes --json and --help. Data goes to stdout, the rest to stderr.\n"
         "  --help, -h    Print this text\n"
         "  --version     Print version, commit and compiled twins; with --json as JSON\n\n"
         "Exit status: 0 ok, 1 a check failed or nothing can serve, 2 bad input or usage,\n"
         "3 no GPU or peer where one is needed.\n\n"
         "Examples:\n"
         "  switchyard verify DIR --io DIR/moe_io.safetensors\n"
         "  switchyard run --preset qwen3-30b-a3b --format nvfp4 --tokens 1\n";
}

Answer version_answer(bool json) {
  if (json) return {kOk, json_text(Json::object())};
  return {kOk, cat("switchyard ", version(), " (commit ", commit(), ")\ntwins: ", twins(), "\n")};
}

std::vector<std::string> command_names() {
  std::vector<std::string> out;
  for (const Command* command : kCommands) out.emplace_back(command->name);
  return out;
}

[[noreturn]] void refuse_command(std::string_view name) {
  for (const Planned& planned : kPlanned)
    if (planned.name == name)
      throw UsageError(
          cat("command '", name, "' is not built in version ", version(), "; ", planned.instead));
  if (name.starts_with("-"))
    throw UsageError(cat("flag '", name, "' is unknown in front of a command; use --help, ",
                         "--version, or a command: ", join(command_names())));
  throw UsageError(cat("command '", name, "' is unknown; ", suggest(name, command_names())));
}

Answer run_command(const Command& command, int count, const char* const* words) {
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
  for (const Command* command : kCommands)
    if (command->name == first) return run_command(*command, argc - 1, argv + 1);
  refuse_command(first);
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

/// "verify: " when a command was recognised, so that the line says which call failed.
std::string prefix(int argc, const char* const* argv) {
  for (const Command* command : kCommands)
    if (argc > 1 && command->name == argv[1]) return cat(command->name, ": ");
  return "";
}

int run_main(int argc, const char* const* argv) {
  std::string where = prefix(argc, argv);
  set_warning_sink([](std::string_view text) { fail(0, cat("warning: ", text)); });
  try {
    return print(dispatch(argc, argv));
  } catch (const UsageError& e) {
    return fail(kBadInput, where + e.what());
  } catch (const DeviceError& e) {
    return fail(kNoDevice, where + e.what());
  } catch (const CannotServe& e) {
    return fail(kFailed, where + e.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailed, where + "memory is exhausted; use a smaller layer or fewer tokens");
  } catch (const std::exception& e) {
    return fail(kFailed, cat(where, "internal error, please report it: ", e.what()));
  }
}

}  // namespace
}  // namespace switchyard::cli

int main(int argc, char** argv) { return switchyard::cli::run_main(argc, argv); }
