// SPDX-License-Identifier: Apache-2.0
// The fused all-reduce by the installed headers over a launcher's processes; run as R processes:
// mpirun --allow-run-as-root --oversubscribe -n R mpi_allreduce_api_test
#include <gtest/gtest.h>

#include "switchyard/api/allreduce.h"
#include "switchyard/comm/mpi_group.h"
#include "tests/cases/allreduce_case.h"

namespace switchyard {
namespace {

using test::ArData;
using test::ArSpec;

TEST(MpiAllReduceApi, EachProcessIsARank) {
  if (!comm::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  static Processes processes;
  Rank rank(processes);
  ASSERT_EQ(rank.number(), processes.rank());
  const std::int64_t ranks = rank.size();
  for (int value = 0; value < ops::kNumAllReducePatterns; ++value) {
    const ArSpec spec{.pattern = ops::to_allreduce_pattern(value), .ranks = ranks};
    std::vector<ArData> all;  // every rank can make every rank's
    for (int r = 0; r < int(ranks); ++r) all.emplace_back(spec, r);
    FusedAllReduce call(rank, {spec.tokens, spec.hidden, spec.dtype});
    ArData& mine = all[std::size_t(rank.number())];
    for (int i = 0; i < 3; ++i) {
      mine.poison();
      call.run(mine.call());
      ASSERT_EQ(test::compare_with_oracle(spec, test::calls_of(all), mine), "") << spec.str();
    }
  }
}

}  // namespace
}  // namespace switchyard
