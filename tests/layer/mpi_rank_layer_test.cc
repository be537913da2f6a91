// SPDX-License-Identifier: Apache-2.0
// Run as R processes: mpirun --allow-run-as-root --oversubscribe -n R mpi_rank_layer_test
// Every format in every parallel mode under auto, bit for bit its contract, as with threads.
#include <gtest/gtest.h>

#include "switchyard/api/layer_builder.h"
#include "switchyard/comm/mpi_group.h"
#include "tests/cases/rank_case.h"
#include "tests/comm/thread_ranks.h"

namespace switchyard {
namespace {

class MpiRanks : public test::EveryLeaf {};

TEST_P(MpiRanks, UnderAutoEachModeKeepsItsContract) {
  if (!comm::has_mpi()) GTEST_SKIP() << "this build has no MPI";
  static comm::MpiSession session;
  comm::Group g = session.form_group(test::long_deadlines());
  for (const test::Mode& of : test::kFourModes) {
    if (g.size() == 1) break;  // a launcher gives the ranks
    const test::Mode m = of.on(g.size());
    const MoeLayer whole = build(test::mode_case(leaf(), m));
    const test::Parts parts = test::parts_of(whole.impl(), m, g.size());
    ASSERT_EQ(test::mode_fault(g, whole.impl(), m, parts), "");
  }
  g.barrier("end");
}

INSTANTIATE_TEST_SUITE_P(Leaves, MpiRanks, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
