// SPDX-License-Identifier: Apache-2.0
#include "cli/process_ranks.h"

#include <algorithm>

#include "cli/failure.h"
#include "switchyard/base/text.h"

namespace switchyard::cli {
namespace {

/// How rank `r` fared: one that is still at work has failed too, since nobody waits for it.
Failure failure_of(const Processes::Ending& e, std::size_t r) {
  if (e.ended) return {e.status, e.text};
  return {kBadInput, e.text.empty() ? cat("rank ", r,
                                          " goes on where others have ended; start "
                                          "all processes with the same words")
                                    : cat("rank ", r, ": ", e.text)};
}

/// The failure to tell of, of all processes; its status is kOk when none failed. A rank that waited
/// in vain has kNoDevice: perhaps for one that failed for a reason of its own.
Failure worst(const std::vector<Processes::Ending>& all) {
  Failure out;
  for (std::size_t r = 0; r < all.size(); ++r) {
    Failure f = failure_of(all[r], r);
    const bool cause = out.status == kNoDevice && f.status != kNoDevice;
    if (f.status != kOk && (out.status == kOk || cause)) out = std::move(f);
  }
  return out;
}

/// Where one rank's failure became the others', it is told as theirs, which names the rank.
void name_rank(Failure& shown, const std::vector<Processes::Ending>& all) {
  for (const Processes::Ending& e : all)
    if (e.text.starts_with("rank ") && e.text.ends_with(": " + shown.text)) shown.text = e.text;
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
  name_rank(shown, all);
  if (processes.rank() != 0) return {shown.status, "", ""};
  if (!shown.text.empty()) return {shown.status, "", std::move(shown.text)};
  return {shown.status, std::move(answer.text), ""};
}

}  // namespace switchyard::cli
