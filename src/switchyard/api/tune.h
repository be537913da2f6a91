// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/api/judge.h"

namespace switchyard {

/// What `tune` is asked.
struct TuneOptions {
  RunOptions source;                                   // its tokens are replaced by the list below
  std::vector<std::string> formats;                    // empty: the layer's own
  std::vector<std::int64_t> tokens = {1, 8, 64, 512};  // each stands for its bucket
  double seconds = 4;                                  // for a call of a bucket
  std::string out;     // the table to write, or to add to; empty: none
  bool again = false;  // tunes what the table has already, too; needs one
  std::function<void(const std::string& what)> progress;
};

/// What was found for one call of a layer.
///
/// Units:   µs of the whole layer, medians of runs in turn; noise as a share. ways: every candidate
///          with the median of its runs in the rounds, slow ones left early; empty where nothing
///          was compared.
struct TunedCall {
  std::int64_t layer = 0, tokens = 0;  // the bucket
  std::string format, leaf, call;
  Tactic plan, tactic;  // equal where nothing beat the plan
  double us = 0, plan_us = 0, ratio = 1, noise = 0;
  std::int64_t candidates = 0, rounds = 0;
  bool known = false;  // the table had it, and nothing was run
  std::string why;     // why the tactic is what it is
  std::vector<std::pair<Tactic, double>> ways;

  bool changed() const { return tactic != plan; }
};

/// The candidates with what a search measured of them; none where it compared none.
std::vector<std::pair<Tactic, double>> with_times(const std::vector<Tactic>& candidates,
                                                  const std::vector<double>& medians);

/// All of them.
struct TuneResult {
  std::vector<TunedCall> calls;
  std::vector<std::string> notices;
  std::int64_t entries = 0;  // of the table that was written
};

/// How the figures of so many ranks come about, in a sentence.
std::string_view tune_rule(std::int64_t ranks);

/// Times the tactics of each layer's calls and writes the winners. A tactic is chosen only when it
/// is faster than the plan's beyond the noise, in runs that did not elect it, and no slower at the
/// bucket's fewest tokens.
/// On several ranks, which are threads, a time is the slowest one's and they use one choice; there
/// caches may hold the weights, the fewest tokens are not asked, and all entries are tuned anew.
/// Errors: UsageError, one line, also for a table of another machine or build; CannotServe, also
///         for ranks under dep; DeviceError; PeerError.
TuneResult tune_layers(const TuneOptions& options);

}  // namespace switchyard
