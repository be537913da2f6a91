// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "switchyard/core/tactic.h"

namespace switchyard::tune {

/// What is timed. Ranks that tune together give the tuner the same numbers, and so it decides the
/// same on each of them.
struct Timed {
  /// One run of a candidate, on weights and routing of its own. Units: µs.
  std::function<double(std::int64_t candidate)> time;
  /// Time since the tuning began. Units: µs.
  std::function<double()> elapsed;
};

/// How long to look.
///
/// Units:   seconds of one search, in both of its parts; the least rounds are made in any case.
struct TunerLimits {
  double seconds = 2;
  int least_rounds = 3, most_rounds = 200;
  int least_pairs = 7, most_pairs = 400;
};

/// A candidate against the plan's tactic, run in turn.
///
/// Units:   medians in µs; ratio is the median of candidate over plan, pair by pair; noise is three
///          standard errors of that ratio, and 0.5 % at least.
struct Duel {
  double us = 0, plan_us = 0, ratio = 1, noise = 0;
  std::int64_t pairs = 0;

  /// Beyond the noise.
  bool faster() const { return ratio < 1 - noise; }
  /// In the median, whatever the noise.
  bool slower() const { return ratio > 1; }
};

/// What a search found.
///
/// Units:   medians in µs, of each candidate's runs in the rounds; empty where there is one only.
struct TunerResult {
  std::int64_t best = 0;    // 0: the plan's
  std::int64_t rounds = 0;  // in which all that were left took part
  std::vector<double> medians;
  Duel duel;  // of the best of the rounds; of the plan with itself where it is that
};

/// Runs the plan's tactic (candidate 0) and `candidate` in turn, in changing order, for up to
/// `seconds` from now. Errors: those of `timed`.
Duel duel(const Timed& timed, std::int64_t candidate, double seconds, const TunerLimits& limits);

/// What a duel over one call compares at another number of tokens than was tuned.
struct DuelSides {
  std::vector<Tactic> plan, chosen;  // of every call; they differ in the call that is judged
};

/// The sides of a duel over call `judged` of a layer whose other calls run what was chosen for them
/// so far. `plans`, `chosen` are what was planned and chosen where the calls were tuned, `here`
/// what is planned where the duel is run: a call that kept its plan runs the plan of `here`.
/// Errors: InternalError unless all have as many calls.
DuelSides duel_sides(const std::vector<Tactic>& plans, const std::vector<Tactic>& chosen,
                     const std::vector<Tactic>& here, std::size_t judged, const Tactic& winner);

/// Looks for the fastest of `count` candidates, of which number 0 is the plan's. In rounds, each
/// runs all that are left once, the best one by median is found; it is chosen only when new runs in
/// turn with the plan's show it faster beyond the noise. So a lucky sample chooses nothing.
/// Errors: InternalError without candidates; those of `timed`.
TunerResult search(const Timed& timed, std::int64_t count, const TunerLimits& limits);

}  // namespace switchyard::tune
