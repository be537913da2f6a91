// SPDX-License-Identifier: Apache-2.0
// Run as R processes: mpirun --allow-run-as-root --oversubscribe -n R mpi_fused_allreduce_test
#include <gtest/gtest.h>

#include "switchyard/comm/mpi_group.h"
#include "tests/comm/allreduce_ranks.h"

namespace switchyard::comm {
namespace {

using test::ArData;
using test::ArSpec;

// Processes match the oracle, and give the bits that threads give.
TEST(MpiFusedAllReduce, EveryPatternOnProcesses) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  static MpiSession session;
  Group g = session.form_group(test::long_deadlines());
  for (int value = 0; value < ops::kNumAllReducePatterns; ++value)
    for (ops::AllReduceStrategy strategy :
         {ops::AllReduceStrategy::kOneShot, ops::AllReduceStrategy::kTwoShot}) {
      ArSpec spec{.pattern = ops::AllReduceFusionPattern(value),
                  .ranks = g.size(),
                  .tokens = 13,
                  .hidden = 250,
                  .strategy = strategy};
      std::vector<ArData> all = test::make_data(spec);  // every rank can make every rank's
      const auto me = std::size_t(g.rank());
      AllReduceWorkspace w(g, test::capacity_of(spec), {.first_sequence = 0xfffffffeU});
      std::vector<std::uint8_t> first;
      for (int i = 0; i < 4; ++i) {
        all[me].poison();
        w.run(all[me].call());
        if (i == 0) first = all[me].outputs();
        ASSERT_TRUE(test::same_bits(all[me].outputs(), first)) << spec.str() << " call " << i;
      }
      ASSERT_TRUE(w.canaries_intact() && all[me].canaries_intact());
      ASSERT_EQ(test::compare_with_oracle(spec, test::calls_of(all), all[me]), "") << spec.str();
      ASSERT_TRUE(test::same_bits(first, test::run_ranks(spec, {}, 1)[0].outputs()));
    }
  g.barrier("end");
}

}  // namespace
}  // namespace switchyard::comm
