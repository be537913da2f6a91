// SPDX-License-Identifier: Apache-2.0
// Run as R processes: mpirun --allow-run-as-root --oversubscribe -n R mpi_exchange_test
#include <gtest/gtest.h>

#include "switchyard/base/check.h"
#include "switchyard/comm/mpi_group.h"
#include "tests/cases/exchange_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"

namespace switchyard::comm {
namespace {

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};

// Processes give the same bits as the reference, and so as threads.
TEST(MpiExchange, EqualsTheContractReferenceBitForBit) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  static MpiSession session;
  Group g = session.form_group(test::long_deadlines());
  const ExchangeShape shape = test::exchange_shape(g.size(), 2 * g.size() + 3, 3, 40, 264);
  for (const Strategy* strategy : kBuilt) {
    auto exchange = make_exchange(*strategy, g, shape, {.first_sequence = 0xfffffff0U});
    constexpr int kRounds = 40;
    for (int round = 0; round < kRounds; ++round) {
      const std::int64_t tokens = (g.rank() * 17 + round * 7) % (shape.capacity + 1);
      const test::ExchangeInput input(shape, g.rank(), tokens, round,
                                      test::kPayloadKinds[round % 5], test::kWires[round / 5 % 5]);
      Ticket ticket = exchange->dispatch(input.args());
      test::serve(ticket.received(), shape, strategy->contract, input.payload, g.rank());
      test::SumCollector got(tokens, shape.hidden);
      exchange->combine(std::move(ticket), got.sink());
      std::vector<float> want = test::expected_sums(input, strategy->contract);
      ASSERT_EQ(got.rows, tokens);
      ASSERT_TRUE(test::same_bits(got.sums, want))
          << cat(strategy->name, " rank ", g.rank(), " round ", round);
    }
    ASSERT_TRUE(exchange->canaries_intact());
  }
  g.barrier("end");
}

}  // namespace
}  // namespace switchyard::comm
