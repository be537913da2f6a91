// SPDX-License-Identifier: Apache-2.0
#include "cli/process_ranks.h"

#include <algorithm>

#include "cli/failure.h"
#include "cli/worst_failure.h"
#include "switchyard/base/text.h"

namespace switchyard::cli {
namespace {

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
  Failure shown = worst_failure(all);
  name_rank(shown, all);
  if (processes.rank() != 0) return {shown.status, "", ""};
  if (!shown.text.empty()) return {shown.status, "", std::move(shown.text)};
  return {shown.status, std::move(answer.text), ""};
}

}  // namespace switchyard::cli
