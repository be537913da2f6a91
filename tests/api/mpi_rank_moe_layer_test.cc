// SPDX-License-Identifier: Apache-2.0
// A layer over a launcher's processes by the installed headers; run as R processes:
// mpirun --allow-run-as-root --oversubscribe -n R mpi_rank_moe_layer_test
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/rank_moe_layer.h"
#include "switchyard/comm/mpi_group.h"
#include "tests/cases/rank_case.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::Mode;

Processes& processes() {
  static Processes instance;
  return instance;
}

class MpiRankMoeLayer : public testing::Test {
 protected:
  void SetUp() override {
    if (!comm::has_mpi()) GTEST_SKIP() << "this build has no MPI";
    if (processes().size() == 1) GTEST_SKIP() << "needs two processes; start with mpirun";
  }
};

TEST_F(MpiRankMoeLayer, EachProcessIsARank) {
  Rank rank(processes());
  const int ranks = rank.size();
  ASSERT_EQ(rank.number(), processes().rank());
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir("mixtral"));
  BuildOptions alone;
  alone.threads = 1;
  const MoeLayer whole = MoeLayer::from_checkpoint(checkpoint, 0, alone);
  for (const Mode& four : test::kFourModes) {
    const Mode m = four.on(ranks);
    RankBuildOptions o;
    o.build = alone;
    o.build.parallel = m.parallel;
    o.build.tp = m.tp;
    o.build.ep = ranks / m.tp;
    o.max_tokens = test::kRankCapacity;
    RankMoeLayer layer = RankMoeLayer::from_checkpoint(rank, checkpoint, 0, o);
    HostBuffer workspace(layer.workspace_bytes());
    test::Call call(whole.impl(), tokens_of(m, rank.number()), seed_of(m, rank.number()));
    const test::Parts parts = test::parts_of(whole.impl(), m, ranks);
    const std::vector<std::byte> want = expected_of_parts(parts, comm::Wire::kBf16, call);
    for (int i = 0; i < 3; ++i) {
      ForwardArgs args = call.args();
      args.workspace = workspace.bytes();
      std::ranges::fill(call.out, std::byte{0xff});
      layer.forward(args);
      ASSERT_EQ(call.out, want) << to_string(m.parallel) << ", rank " << rank.number();
    }
  }
}

// A call that fails on one process ends all; on new ranks the same processes serve.
TEST_F(MpiRankMoeLayer, AfterAFailedCallNewRanksServe) {
  for (std::int64_t tokens_of_1 : {test::kRankCapacity + 1, test::kRankCapacity}) {
    Rank rank(processes());
    RankBuildOptions o;
    o.max_tokens = test::kRankCapacity;
    o.balanced = true;
    o.build.slots = (8 + rank.size() - 1) / rank.size() * rank.size();
    RankMoeLayer layer = RankMoeLayer::from_preset(rank, "tiny", o);
    BuildOptions alone;
    alone.threads = 1;
    const MoeLayer whole = MoeLayer::from_preset("tiny", alone);
    HostBuffer workspace(layer.workspace_bytes());
    test::Call call(whole.impl(), rank.number() == 1 ? tokens_of_1 : 1);
    ForwardArgs args = call.args();
    args.workspace = workspace.bytes();
    if (tokens_of_1 > test::kRankCapacity) {
      if (rank.number() == 1) {
        EXPECT_THROW(layer.forward(args), UsageError);
      } else {
        EXPECT_THROW(layer.forward(args), DeviceError);
      }
      continue;
    }
    layer.forward(args);
    std::int64_t all = 0;
    for (std::int64_t c : layer.take_counts()) all += c;
    EXPECT_EQ(all, (rank.size() - 1 + tokens_of_1) * layer.problem().top_k());
    std::vector<std::int32_t> slots = layer.slot_experts();
    std::swap(slots.front(), slots.back());
    layer.migrate(slots);
    EXPECT_EQ(layer.slot_experts(), slots);
    layer.forward(args);
  }
}

// Who leaves by an exception tells the others, which do not wait for the deadline.
TEST_F(MpiRankMoeLayer, AProcessThatLeavesByAnExceptionIsTold) {
  const auto start = std::chrono::steady_clock::now();
  try {
    Rank rank(processes());
    if (rank.number() == 1) throw std::runtime_error("of the caller's");
    rank.barrier();
    ADD_FAILURE() << "rank 1 never came";
  } catch (const DeviceError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("rank 1 left by an exception"));
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "of the caller's");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(200));
}

// Processes that read unlike weights of one shape are told so before anything runs.
TEST_F(MpiRankMoeLayer, CheckpointsThatDifferAreToldApart) {
  Rank rank(processes());
  test::TempDir dir;
  test::CheckpointEditor edited = test::CheckpointEditor::fixture("mixtral");
  edited.tensors.at("model.layers.0.block_sparse_moe.experts.6.w2.weight").bytes[0] ^= 1;
  edited.write(dir);
  const bool odd = rank.number() == 1;
  const Checkpoint mine = Checkpoint::open(odd ? dir.path() : test::data_dir("mixtral"));
  RankBuildOptions o;
  o.max_tokens = 4;
  EXPECT_THAT(test::usage_error_of([&] { RankMoeLayer::from_checkpoint(rank, mine, 0, o); }),
              testing::HasSubstr("a checkpoint whose digest"));
}

}  // namespace
}  // namespace switchyard
