// SPDX-License-Identifier: Apache-2.0
// The fused all-reduce between GPUs of two processes, over CUDA IPC, or of two that take turns on
// one GPU; one of them is killed. This process itself never touches CUDA, which no fork survives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/comm/device_allreduce_ranks.h"
#include "tests/comm/process_ranks.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceStrategy;
using test::ArData;
using test::ArSpec;
using test::DeviceRank;
using testing::HasSubstr;

constexpr const char* kNoGpus = "no CUDA device here";

/// Runs f(group) in two processes, with a GPU each where there are two.
template <class F>
std::vector<test::ProcessOutcome> on_gpu_processes(const Deadlines& deadlines, F&& f) {
  return test::on_process_ranks(2, deadlines, [&](Group& g) -> std::string {
    if (resolve::probe_gpus().num_gpus == 0) return kNoGpus;
    test::take_seat(g);
    return f(g);
  });
}

TEST(DeviceAllReduceProcesses, EveryPatternHasTheCpuTwinsBits) {
  const auto outcomes = on_gpu_processes(test::gpu_deadlines(), [](Group& g) {
    for (int value = 0; value < ops::kNumAllReducePatterns; ++value)
      for (AllReduceStrategy strategy :
           {AllReduceStrategy::kOneShot, AllReduceStrategy::kTwoShot}) {
        const ArSpec spec{.pattern = ops::to_allreduce_pattern(value),
                          .tokens = 139,
                          .hidden = 200,
                          .strategy = strategy};
        std::vector<ArData> all = test::make_data(spec);
        DeviceRank rank(g, spec);
        ArData& mine = all[std::size_t(g.rank())];
        for (int i = 0; i < 3; ++i) rank.run(mine);
        if (!test::same_bits(test::comparable(spec, mine),
                             test::comparable(spec, test::run_ranks(spec, {}, 1)[0])))
          return cat("wrong: ", spec.str());
      }
    return std::string("well");
  });
  if (outcomes[0].text == kNoGpus) GTEST_SKIP() << kNoGpus;
  for (const auto& o : outcomes) EXPECT_EQ(o.text, "well");
}

TEST(DeviceAllReduceProcesses, AKilledRankIsNamedAndTheContextStaysUsable) {
  const Deadlines brief{.warm_up = std::chrono::seconds(20), .serving = std::chrono::seconds(2)};
  const auto outcomes = on_gpu_processes(brief, [](Group& g) -> std::string {
    const ArSpec spec{.tokens = 40, .hidden = 256};
    ArData mine(spec, g.rank());
    std::string text;
    {
      DeviceRank rank(g, spec);
      rank.run(mine);
      const ops::AllReduceCall host = mine.call();
      api::AllReduceMirror mirror(host);
      if (g.rank() == 1) raise(SIGKILL);
      try {
        rank.workspace.run(mirror.call(), rank.stream.get());
        rank.workspace.wait(rank.stream.get());
        return "nothing was missed";
      } catch (const PeerError& e) {
        text = e.what();
      }
    }
    // Alone on the same GPU.
    const ArSpec alone{.ranks = 1, .tokens = 4, .hidden = 64};
    std::vector<ArData> data = test::make_data(alone);
    Group one = std::move(make_thread_groups(1, test::gpu_deadlines())[0]);
    DeviceRank rank(one, alone);
    rank.run(data[0]);
    return text + test::compare_with_oracle(alone, test::calls_of(data), data[0]);
  });
  if (outcomes[0].text == kNoGpus) GTEST_SKIP() << kNoGpus;
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  EXPECT_THAT(outcomes[0].text, HasSubstr("rank 0 waited 2 s on its GPU for rank 1"));
  EXPECT_THAT(outcomes[0].text, testing::EndsWith("form a new group"));
}

}  // namespace
}  // namespace switchyard::comm
