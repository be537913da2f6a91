// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/tune/call_key.h"

namespace switchyard::tune {

/// A tunable call of a forward, as it was recorded.
struct TunableCall {
  std::string name;  // CallTactic::call
  CallKey key;
  std::vector<Tactic> candidates;  // the plan's first
};

/// The tunable calls of a forward in their order: recorded, with their candidates, or replayed with
/// one tactic for each. Give it to a forward as ForwardArgs::tape.
///
/// One forward at a time; not for several threads. The bits of the output do not depend on it.
class Tape {
 public:
  /// Notes the calls of one forward; they run what they would run without it.
  Tape() = default;
  /// Makes every forward run `tactics`, one for each call.
  /// Errors: UsageError unless there are as many tactics as calls.
  Tape(std::vector<TunableCall> calls, std::vector<Tactic> tactics);

  /// What was recorded.
  const std::vector<TunableCall>& calls() const { return calls_; }
  /// A forward begins: what one before it left half done, because it failed, is forgotten.
  void start();
  /// A call of the running forward, in order. Returns the tactic that it is to run; null: its own.
  /// Errors: UsageError, naming both calls, where the forward's is another than was recorded, and
  ///         naming call and tactic where the call cannot run it. The tape then starts anew.
  const Tactic* next(std::string_view name, const leaves::Leaf& leaf, const ops::FfnCall& call);

 private:
  const Tactic* replay(std::string_view name, const leaves::Leaf& leaf, const ops::FfnCall& call);

  std::vector<TunableCall> calls_;
  std::vector<Tactic> tactics_;
  bool replays_ = false;
  std::size_t at_ = 0;
};

/// How many combinations of candidates there are. Errors: InternalError beyond 2^62.
std::int64_t num_combinations(const std::vector<TunableCall>& calls);
/// Combination `i` of them: one candidate for each call; 0 is the plan's everywhere.
std::vector<Tactic> combination(const std::vector<TunableCall>& calls, std::int64_t i);

}  // namespace switchyard::tune
