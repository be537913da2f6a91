// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/failure.h"
#include "switchyard/api/processes.h"
#include "switchyard/base/text.h"

namespace switchyard::cli {

/// How well the ending of one process explains why a run of several failed; 0: it did not fail. A
/// process that waited in vain (kNoDevice) did so perhaps for one with a reason of its own, and one
/// that goes on where others have ended says least.
inline int explains(const Processes::Ending& e) {
  const bool told = !e.text.empty();
  if (e.ended && e.status == kOk) return 0;
  if (e.ended && told && e.status != kNoDevice) return 5;
  if (!e.ended && told) return 4;
  if (told) return 3;
  return e.ended ? 1 : 2;
}

/// The failure to tell of, of all processes in rank order: of those that explain most, the first.
/// Its status is kOk when none failed.
inline Failure worst_failure(const std::vector<Processes::Ending>& all) {
  std::size_t worst = 0;
  for (std::size_t r = 1; r < all.size(); ++r)
    if (explains(all[r]) > explains(all[worst])) worst = r;
  if (all.empty() || explains(all[worst]) == 0) return {};
  const Processes::Ending& e = all[worst];
  if (e.ended) return {e.status, e.text};
  return {kBadInput, e.text.empty() ? cat("rank ", worst,
                                          " goes on where others have ended; start all processes "
                                          "with the same words")
                                    : cat("rank ", worst, ": ", e.text)};
}

}  // namespace switchyard::cli
