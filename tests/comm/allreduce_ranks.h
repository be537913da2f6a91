// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "switchyard/comm/fused_allreduce.h"
#include "tests/cases/allreduce_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"

namespace switchyard::test {

/// The capacity that just fits a spec.
inline comm::AllReduceCapacity capacity_of(const ArSpec& s) {
  return {s.ranks, s.tokens, s.hidden, s.dtype, s.fp32_wire};
}

/// Every rank's data of a spec.
inline std::vector<ArData> make_data(const ArSpec& spec) {
  std::vector<ArData> out;
  for (int r = 0; r < int(spec.ranks); ++r) out.emplace_back(spec, r);
  return out;
}

/// Runs a spec on thread ranks, `calls` times over poisoned outputs, each with the same bits, and
/// gives back every rank's data.
inline std::vector<ArData> run_ranks(const ArSpec& spec, const comm::AllReduceOptions& options = {},
                                     int calls = 3) {
  std::vector<ArData> data = make_data(spec);
  expect_all_well(on_thread_ranks(int(spec.ranks), long_deadlines(), [&](comm::Group& g) {
    comm::AllReduceWorkspace workspace(g, capacity_of(spec), options);
    ArData& mine = data[std::size_t(g.rank())];
    std::vector<std::uint8_t> first;
    for (int i = 0; i < calls; ++i) {
      mine.poison();
      workspace.run(mine.call());
      if (i == 0) first = mine.outputs();
      EXPECT_TRUE(same_bits(mine.outputs(), first)) << spec.str() << ", call " << i;
    }
    EXPECT_TRUE(workspace.canaries_intact()) << spec.str();
    EXPECT_TRUE(mine.canaries_intact()) << spec.str();
  }));
  return data;
}

/// Whether all ranks wrote the same.
inline void expect_equal_ranks(const ArSpec& spec, const std::vector<ArData>& data) {
  for (const ArData& d : data) EXPECT_TRUE(same_bits(d.outputs(), data[0].outputs())) << spec.str();
}

/// Runs a spec and holds it against the oracle; all ranks must agree.
inline std::vector<ArData> check_ranks(const ArSpec& spec,
                                       const comm::AllReduceOptions& options = {}) {
  std::vector<ArData> data = run_ranks(spec, options);
  expect_equal_ranks(spec, data);
  EXPECT_EQ(compare_with_oracle(spec, calls_of(data), data[0]), "") << spec.str();
  return data;
}

}  // namespace switchyard::test
