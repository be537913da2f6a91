// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "switchyard/layer/layer.h"
#include "switchyard/tune/tape.h"

namespace switchyard::layer {

/// The names of the tunable calls of a forward.
inline constexpr std::string_view kExpertsCall = "experts", kSharedCall = "shared expert";

/// A tunable call of a forward: which, and who chooses its tactic.
struct ExpertsCall {
  std::string_view name;
  const leaves::Leaf* leaf = nullptr;
  const TacticList* tactics = nullptr;
  tune::Tape* tape = nullptr;                // goes before the list; null: none
  std::optional<TacticUse>* used = nullptr;  // written with what runs; null: nobody asks
};

/// Runs the experts: by the tape's tactic, else by the list's, else as their leaf plans.
/// Errors: those of the leaf and of the tape.
void run_experts(const ExpertsCall& call, ops::FfnArgs& args);

/// The tactics of a forward of `tokens` tokens on one rank, in the order of its calls.
std::vector<CallTactic> tactics_of(const Layer& layer, std::int64_t tokens);

/// Those calls as a tape would record them, without running any.
std::vector<tune::TunableCall> tunable_calls(const Layer& layer, std::int64_t tokens);

}  // namespace switchyard::layer
