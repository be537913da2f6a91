// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "switchyard/tune/tape.h"
#include "tests/cases/leaf_case.h"

namespace switchyard::test {

/// The tunable calls of a forward.
inline std::vector<tune::TunableCall> recorded_calls(Call& call) {
  tune::Tape tape;
  call.run([&](ForwardArgs& a) { a.tape = &tape; });
  return tape.calls();
}

/// Runs the plan's tactics against the oracle, and every combination of candidates against the bits
/// of the plan's. Returns how many there are.
inline std::int64_t expect_same_bits_for_every_tactic(const MoeLayer& layer, std::int64_t tokens) {
  const layer::Judgement j = judge(layer, tokens);
  EXPECT_TRUE(j.ok(budgets_of(layer))) << layer.leaf() << ": rel L2 " << j.rel_l2_oracle;
  Call call(layer.impl(), tokens);
  const std::vector<std::byte> want = call.run();
  const std::vector<tune::TunableCall> calls = recorded_calls(call);
  EXPECT_EQ(call.out, want) << "recording changes nothing";
  const std::int64_t combinations = tune::num_combinations(calls);
  for (std::int64_t i = 0; i < combinations; ++i) {
    const std::vector<Tactic> tactics = tune::combination(calls, i);
    tune::Tape tape(calls, tactics);
    Trace trace;
    const std::vector<std::byte> got =
        call.run([&](ForwardArgs& a) { a.tape = &tape, a.trace = &trace; });
    EXPECT_EQ(got == want, true) << layer.leaf() << ", " << tokens << " tokens, "
                                 << to_string(tactics.back());
    EXPECT_EQ(trace.experts, (TacticUse{tactics.back(), TacticOrigin::kReplay}));
    if (calls.size() > 1) {
      EXPECT_EQ(trace.shared, (TacticUse{tactics.front(), TacticOrigin::kReplay}));
    }
  }
  return combinations;
}

}  // namespace switchyard::test
