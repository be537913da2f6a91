// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/support/command_runner.h"

namespace switchyard::test {

using Json = nlohmann::json;
using Keys = std::set<std::string>;

/// Every command that prints JSON of a measurement or a report.
inline const std::vector<std::string> kCommands = {
    "run",           "verify",         "explain",         "inspect",       "doctor", "bench layer",
    "bench routing", "bench exchange", "bench allreduce", "bench compare", "tune"};

/// "bench layer" in its words, with `flag` behind.
inline std::vector<std::string> words(const std::string& command, const std::string& flag) {
  const std::size_t blank = command.find(' ');
  if (blank == std::string::npos) return {command, flag};
  return {command.substr(0, blank), command.substr(blank + 1), flag};
}

inline std::string data(const std::string& name) {
  return std::string(SWITCHYARD_TEST_DATA) + "/" + name;
}

inline Keys keys(const Json& object) {
  Keys out;
  for (const auto& [key, value] : object.items()) out.insert(key);
  return out;
}

/// Parses what a command printed; its stderr must be silent.
inline Json json_of(std::vector<std::string> args, int status = 0) {
  args.push_back("--json");
  Finished done = run_command(args);
  EXPECT_EQ(done.status, status) << done.err;
  EXPECT_EQ(done.err, "");
  EXPECT_EQ(done.out.back(), '\n');
  return Json::parse(done.out);
}

inline const Keys kHeader = {"version", "commit", "machine", "fingerprint"};

inline Keys with_header(Keys more) {
  more.insert(kHeader.begin(), kHeader.end());
  return more;
}

}  // namespace switchyard::test
