// SPDX-License-Identifier: Apache-2.0
#include "switchyard/tune/tape.h"

#include "switchyard/base/check.h"

namespace switchyard::tune {

Tape::Tape(std::vector<TunableCall> calls, std::vector<Tactic> tactics)
    : calls_(std::move(calls)), tactics_(std::move(tactics)), replays_(true) {
  require(tactics_.size() == calls_.size(), "replay: ", tactics_.size(), " tactics for ",
          calls_.size(), " recorded calls; give one for each");
}

void Tape::start() {
  at_ = 0;
  if (!replays_) calls_.clear();
}

const Tactic* Tape::next(std::string_view name, const leaves::Leaf& leaf,
                         const ops::FfnCall& call) {
  if (replays_) return replay(name, leaf, call);
  calls_.push_back({std::string(name), key_of(leaf, call), leaf.ffn->candidates(call)});
  return nullptr;
}

const Tactic* Tape::replay(std::string_view name, const leaves::Leaf& leaf,
                           const ops::FfnCall& call) {
  const std::size_t at = at_;
  at_ = 0;  // where this call does not fit
  require(!calls_.empty(), "replay: nothing was recorded, and the forward calls the ", name);
  const TunableCall& recorded = calls_[at];
  const CallKey key = key_of(leaf, call);
  require(recorded.name == name && recorded.key == key, "replay: call ", at + 1, " is the ", name,
          ", ", to_string(key), "; recorded is the ", recorded.name, ", ", to_string(recorded.key),
          "; record this forward");
  try {
    leaf.ffn->check_tactic(call, tactics_[at]);
  } catch (const UsageError& e) {
    throw UsageError(
        cat("replay: call ", at + 1, ", the ", name, ", ", to_string(key), ": ", e.what()));
  }
  at_ = (at + 1) % calls_.size();
  return &tactics_[at];
}

std::int64_t num_combinations(const std::vector<TunableCall>& calls) {
  constexpr std::int64_t kMost = std::int64_t(1) << 62;
  std::int64_t product = 1;
  for (const TunableCall& call : calls) {
    const std::int64_t count = std::int64_t(call.candidates.size());
    ensure(count > 0 && product <= kMost / count, "combinations of ", calls.size(),
           " tunable calls");
    product *= count;
  }
  return product;
}

std::vector<Tactic> combination(const std::vector<TunableCall>& calls, std::int64_t i) {
  ensure(i >= 0 && i < num_combinations(calls), "combination ", i, " of ", num_combinations(calls));
  std::vector<Tactic> out;
  for (const TunableCall& call : calls) {
    const std::int64_t count = std::int64_t(call.candidates.size());
    out.push_back(call.candidates[std::size_t(i % count)]);
    i /= count;
  }
  return out;
}

}  // namespace switchyard::tune
