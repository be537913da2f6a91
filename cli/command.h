// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "cli/flags.h"

namespace switchyard::cli {

/// Exit statuses; scripts depend on them.
enum ExitStatus : int {
  kOk = 0,
  kFailed = 1,    // a check failed, or nothing can serve
  kBadInput = 2,  // bad input or usage
  kNoDevice = 3   // no GPU or peer where one is needed
};

/// What a command that ran to its end leaves: the exit status, and all that goes to stdout.
struct Answer {
  int status = kOk;
  std::string text;
  std::string error = {};  // one line for stderr, when it failed without an exception
};

/// One subcommand: one file and one line in main.cc.
struct Command {
  std::string_view name;  // "run"; of two words where a first one is shared: "bench layer"
  std::string_view summary;
  std::string_view example;  // complete command lines, one a line
  /// Declares its flags on `args`, parses, does the work. Errors: any; main turns them into a line.
  Answer (*run)(Arguments& args) = nullptr;
};

/// The subcommands, in the order of `switchyard --help`.
extern const Command kRun, kVerify, kExplain, kInspect, kDoctor, kBenchLayer, kBenchRouting,
    kBenchExchange, kBenchAllReduce, kBenchCompare, kTune, kEplbPlan, kEplbSimulate;

}  // namespace switchyard::cli
