// SPDX-License-Identifier: Apache-2.0
// Run as R processes: mpirun --allow-run-as-root --oversubscribe -n R mpi_exchange_test
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "switchyard/base/check.h"
#include "switchyard/comm/mpi_group.h"
#include "tests/cases/exchange_case.h"
#include "tests/cases/exchange_matrix.h"
#include "tests/comm/thread_ranks.h"
#include "tests/support/same_bits.h"
#include "tests/support/soak.h"

namespace switchyard::comm {
namespace {

const Strategy* const kBuilt[] = {&all_gather(), &one_sided(), &two_sided(), &expert_major(),
                                  &compact()};

MpiSession& session() {
  static MpiSession session;
  return session;
}

/// One rank's part of a round; what is wrong, or nothing.
std::string round_fault(Exchange& exchange, const Strategy& strategy, int rank, int round) {
  const ExchangeShape& shape = exchange.shape();
  const std::int64_t tokens = (rank * 17 + round * 7) % (shape.capacity + 1);
  const test::ExchangeInput input(shape, rank, tokens, round, test::kPayloadKinds[round % 5],
                                  test::kWires[round / 5 % 5]);
  Ticket ticket = exchange.dispatch(input.args());
  test::serve(ticket.received(), shape, strategy.contract, input.payload, rank);
  test::SumCollector got(tokens, shape.hidden);
  exchange.combine(std::move(ticket), got.sink());
  const bool right = got.rows == tokens &&
                     test::same_bits(got.sums, test::expected_sums(input, strategy.contract)) &&
                     exchange.canaries_intact();
  return right ? "" : cat(strategy.name, " rank ", rank, " round ", round);
}

// Processes give the same bits as the reference, and so as threads, over many exchanges of unlike
// sizes, payloads and forms; the sequence number passes its wrap, and rank 1 is late now and then.
TEST(MpiExchange, ManyRoundsEqualTheContractReferenceBitForBit) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  Group g = session().form_group(test::long_deadlines());
  const int rounds = test::subset_or_full(200, 20'000);  // of each strategy
  const ExchangeShape shape = test::exchange_shape(g.size(), 2 * g.size() + 3, 3, 20, 96);
  FaultHook late{nullptr, [](void*, FaultPoint point, MessageHeader*) {
                   static int calls = 0;
                   constexpr int kEvery = 97;
                   if (point != FaultPoint::kHeader && ++calls % kEvery == 0)
                     std::this_thread::sleep_for(std::chrono::milliseconds(2));
                 }};
  if (g.rank() != 1) late = {};
  for (const Strategy* strategy : kBuilt) {
    auto exchange =
        make_exchange(*strategy, g, shape, {.first_sequence = 0xfffffff0U, .hook = late});
    for (int round = 0; round < rounds; ++round)
      ASSERT_EQ(round_fault(*exchange, *strategy, g.rank(), round), "");
  }
  g.barrier("end");
}

// The matrix that threads pass, at this number of ranks.
TEST(MpiExchange, TheMatrixHoldsBetweenProcesses) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  Group g = session().form_group(test::long_deadlines());
  test::MatrixControls controls;
  for (const test::MatrixCase& c : test::matrix_cases(g.size())) {
    test::MatrixRank rank(g, c);
    for (int round = 0; round < c.rounds(); ++round) {
      const std::string fault = rank.run(test::MatrixRound(c, round), controls);
      if (!fault.empty()) g.abort("a test failed");
      ASSERT_EQ(fault, "");
    }
  }
  g.barrier("end");
}

}  // namespace
}  // namespace switchyard::comm
