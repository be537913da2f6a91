// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "cli/command.h"
#include "cli/flags.h"
#include "switchyard/api/processes.h"

namespace switchyard::cli {

/// Runs `work` on every process that a launcher started, this one alone without a launcher. The
/// answer is the first process's to print; the others print nothing, and all have one exit status.
/// A failure is told once: the first one that is no mere consequence of another rank's.
Answer on_processes(const std::function<Answer(Processes&)>& work);

/// Reads a command's flags on all processes, whose mistakes all learn of; false where help is
/// wanted. `Flags` has add(args) and finish(processes).
template <class Flags>
bool read_together(Processes& processes, Flags& flags, Arguments& args) {
  bool wanted = false;
  processes.together([&] {
    flags.add(args);
    wanted = args.parse();
    if (wanted) flags.finish(processes);
  });
  return wanted;
}

}  // namespace switchyard::cli
