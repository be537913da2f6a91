// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/command.h"
#include "switchyard/api/bench_search.h"

namespace switchyard::cli {

/// The axes that `word` adds: leaf, comm, parallel or graph. Errors: UsageError on any other word.
void take_axis(const std::string& word, SearchAxes& axes);

/// Runs the search, and says what it found; `line` is the command line, for the record.
Answer answer_search(const BenchSearchOptions& options, bool json, const std::string& line);

}  // namespace switchyard::cli
