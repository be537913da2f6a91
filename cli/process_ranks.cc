// SPDX-License-Identifier: Apache-2.0
#include "cli/process_ranks.h"

#include "cli/failure.h"

namespace switchyard::cli {
namespace {

/// The failure to tell of, of all processes; its status is kOk when none failed. A rank that waited
/// in vain has kNoDevice: perhaps for one that failed for a reason of its own.
Failure worst(const std::vector<Processes::Ending>& all) {
  Failure out;
  for (const Processes::Ending& e : all) {
    Failure f{e.status, e.text};
    const bool cause = out.status == kNoDevice && f.status != kNoDevice;
    if (f.status != kOk && (out.status == kOk || cause)) out = std::move(f);
  }
  return out;
}

}  // namespace

Answer on_processes(const std::function<Answer(Processes&)>& work) {
  // Ends behind main's printing, and waits there for all: a launcher kills the others as soon as
  // one has ended with an error.
  static Processes processes;
  if (processes.size() == 1) return work(processes);
  Answer answer;
  Failure mine;
  try {
    answer = work(processes);
    mine.status = answer.status;
  } catch (...) {
    mine = current_failure();
  }
  std::vector<Processes::Ending> all;
  try {
    all = processes.end({mine.status, mine.text});
  } catch (...) {
    // Where the others cannot be reached each tells of its own failure, which is why.
    if (mine.status == kOk) throw;
    return {mine.status, "", std::move(mine.text)};
  }
  Failure shown = worst(all);
  if (processes.rank() != 0) return {shown.status, "", ""};
  if (!shown.text.empty()) return {shown.status, "", std::move(shown.text)};
  return {shown.status, std::move(answer.text), ""};
}

}  // namespace switchyard::cli
