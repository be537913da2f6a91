// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "switchyard/api/judge.h"
#include "switchyard/api/processes.h"

namespace switchyard {

/// What decides the work of `call`, in the order in which a difference is told: the options that
/// every process must have alike, and the switches. What may differ, threads, a table of tactics
/// and where a checkpoint lies, is not among them.
std::vector<Processes::Agreed> run_words(std::string_view call, const RunOptions& options);

/// The same switches alone.
std::vector<Processes::Agreed> switch_words();

}  // namespace switchyard
