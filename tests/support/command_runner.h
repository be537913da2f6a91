// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace switchyard::test {

/// What a finished process left behind.
struct Finished {
  int status = -1;  // exit status; 128 + signal when it was killed
  std::string out, err;
};

/// How to start the command.
struct Start {
  std::vector<std::string> args;
  std::vector<std::pair<std::string, std::string>> env;  // beside ours, which loses every switch
  std::vector<std::string> launcher{};                   // in front of the command, e.g. mpirun
  bool terminal = false;                                 // stderr is a pseudo-terminal
  std::string out_path{};                                // where stdout goes; empty: it is captured
};

/// Runs the built command to its end. Errors: std::runtime_error when it cannot be started.
Finished run_command(const Start& start);
/// The same with arguments only.
Finished run_command(const std::vector<std::string>& args);

}  // namespace switchyard::test
