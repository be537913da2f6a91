// SPDX-License-Identifier: Apache-2.0
// Many calls between two GPUs of one process, or of ranks that share one: graphs, changing shapes,
// slow and contradicting ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "switchyard/base/random.h"
#include "tests/comm/device_allreduce_ranks.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceStrategy;
using test::ArData;
using test::ArSpec;
using test::DeviceRank;
using test::same_bits;
using testing::HasSubstr;
using Pattern = ops::AllReduceFusionPattern;

class DeviceAllReduceCalls : public test::NeedsGpu {};

/// Calls of changing patterns, tokens, widths, types and strategies, all within one capacity.
std::vector<ArSpec> mixed_specs() {
  constexpr AllReduceStrategy kOne = AllReduceStrategy::kOneShot,
                              kTwo = AllReduceStrategy::kTwoShot;
  return {{.tokens = 3, .hidden = 512, .strategy = kOne},
          {.tokens = 1, .hidden = 512, .strategy = kTwo},
          {.pattern = Pattern::kMoEFinalizeARResidualRMSNorm,
           .tokens = 17,
           .hidden = 512,
           .strategy = kOne},
          {.pattern = Pattern::kAllReduce, .tokens = 200, .hidden = 64, .strategy = kTwo},
          {.pattern = Pattern::kARResidualRMSNormOutFP4Quant,
           .dtype = Dtype::kFp16,
           .tokens = 33,
           .hidden = 256,
           .strategy = kOne},
          {.pattern = Pattern::kARResidualRMSNormDynamicFP8Quant,
           .dtype = Dtype::kF32,
           .tokens = 5,
           .hidden = 256,
           .strategy = kTwo},
          {.pattern = Pattern::kMoEReductionARResidualRMSNorm,
           .tokens = 150,
           .hidden = 90,
           .strategy = kOne},
          {.tokens = 0, .hidden = 64, .strategy = kOne}};
}

/// One rank's calls of mixed_specs(), ready to be enqueued, and what they must write.
class MixedCalls {
 public:
  explicit MixedCalls(int rank) {
    for (const ArSpec& spec : mixed_specs()) {
      data_.push_back(std::make_unique<ArData>(spec, rank));
      calls_.push_back(data_.back()->call());
      want_.push_back(test::comparable(spec, test::run_ranks(spec, {}, 1)[0]));
    }
    for (const ops::AllReduceCall& call : calls_)
      mirrors_.push_back(std::make_unique<api::AllReduceMirror>(call));
  }
  std::size_t size() const { return calls_.size(); }
  const ops::AllReduceCall& call(std::size_t i) const { return mirrors_[i]->call(); }
  /// Which calls' outputs are not what they must be; poisons them for the next time.
  std::string wrong() {
    std::string out;
    for (std::size_t i = 0; i < size(); ++i) {
      mirrors_[i]->download();
      if (!same_bits(test::comparable(mixed_specs()[i], *data_[i]), want_[i]))
        out += mixed_specs()[i].str() + "; ";
      data_[i]->poison();
      mirrors_[i]->upload();
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<ArData>> data_;
  std::vector<ops::AllReduceCall> calls_;
  std::vector<std::unique_ptr<api::AllReduceMirror>> mirrors_;
  std::vector<std::vector<std::uint8_t>> want_;
};

AllReduceCapacity mixed_capacity() { return {2, 200, 512, Dtype::kF32, true}; }

TEST_F(DeviceAllReduceCalls, HundredThousandMixedCallsAndReplays) {
  constexpr int kRounds = 50, kStepsPerRound = 250;  // a replay is eight calls
  std::atomic<std::int64_t> total = 0;
  test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    test::take_seat(g);
    DeviceStream stream;
    MixedCalls calls(g.rank());
    DeviceAllReduce workspace(g, mixed_capacity(), test::seated(g));
    g.barrier("workspaces built");
    auto all = [&] {
      for (std::size_t i = 0; i < calls.size(); ++i) workspace.run(calls.call(i), stream.get());
    };
    all();
    workspace.wait(stream.get());
    ASSERT_EQ(calls.wrong(), "");
    g.barrier("first calls ended");
    DeviceGraph graph(stream, all);
    g.barrier("graphs recorded");
    const Random random(7, 1);  // the same on both ranks
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kStepsPerRound; ++i) {
        const std::uint64_t turn =
            random.bits(std::uint64_t(round) * kStepsPerRound + std::uint64_t(i));
        if (turn % 2 == 0) {
          graph.run();
        } else {
          for (int j = 0; j < 8; ++j)
            workspace.run(calls.call((turn >> (8 + j * 4)) % calls.size()), stream.get());
        }
        total += 8;
        // A queue that is full holds up every launch of its GPU, also those that it waits for.
        if (test::share_a_gpu(2) && i % 25 == 0) workspace.wait(stream.get());
      }
      all();
      workspace.wait(stream.get());
      ASSERT_EQ(calls.wrong(), "") << "round " << round;
      g.barrier("round ended");
    }
  }));
  EXPECT_GE(total.load() / 2, 100000);
}

// A rank stands still between its sending and its first look, while the other goes on.
TEST_F(DeviceAllReduceCalls, ASlowRankIsWaitedFor) {
  for (int slow : {0, 1})
    test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
      test::take_seat(g);
      DeviceStream stream;
      MixedCalls calls(g.rank());
      DeviceAllReduce workspace(
          g, mixed_capacity(),
          test::seated(g, {.pause = std::chrono::microseconds(g.rank() == slow ? 50 : 0)}));
      g.barrier("workspaces built");
      for (int round = 0; round < 5; ++round) {
        for (std::size_t i = 0; i < calls.size(); ++i) workspace.run(calls.call(i), stream.get());
        if (g.rank() != slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        workspace.wait(stream.get());
        EXPECT_EQ(calls.wrong(), "");
        g.barrier("round ended");
      }
    }));
}

/// What both ranks throw when `alter` changes rank 1's call of a spec, or, without a value, when
/// rank 1 makes none.
template <class E, class F>
std::vector<std::string> texts_of_failure(const ArSpec& spec, F&& act) {
  const Deadlines brief{.warm_up = std::chrono::seconds(1), .serving = std::chrono::seconds(1)};
  std::vector<ArData> data = test::make_data(spec);
  const test::Outcomes outcomes = test::on_thread_ranks(2, brief, [&](Group& g) {
    test::take_seat(g);
    DeviceRank rank(g, spec);
    const ops::AllReduceCall host = data[std::size_t(g.rank())].call();
    api::AllReduceMirror mirror(host);
    g.barrier("inputs uploaded");
    ops::AllReduceCall call = mirror.call();
    if (!act(g.rank(), call)) return test::play_dead(g);
    rank.workspace.run(call, rank.stream.get());
    rank.workspace.wait(rank.stream.get());
  });
  return {test::text_of<E>(outcomes[0]), test::text_of<E>(outcomes[1])};
}

TEST_F(DeviceAllReduceCalls, CallsThatDifferAreTold) {
  struct Difference {
    const char* name;
    void (*alter)(ops::AllReduceCall&);
  };
  const Difference differences[] = {
      {"tokens", [](ops::AllReduceCall& c) { c.shape.tokens = 3; }},
      {"hidden", [](ops::AllReduceCall& c) { c.shape.hidden = 120; }},
      {"strategy", [](ops::AllReduceCall& c) { c.shape.strategy = AllReduceStrategy::kTwoShot; }},
      {"rounding", [](ops::AllReduceCall& c) { c.shape.legacy_rounding = true; }},
      {"the outputs", [](ops::AllReduceCall& c) { c.norm->residual_out = nullptr; }},
      {"eps bits", [](ops::AllReduceCall& c) { c.norm->rms_eps = 1e-3F; }},
      {"weight_bias bits", [](ops::AllReduceCall& c) { c.norm->weight_bias = 1; }}};
  for (const Difference& d : differences) {
    const std::vector<std::string> texts = texts_of_failure<UsageError>(
        {.tokens = 4, .hidden = 128}, [&](int rank, ops::AllReduceCall& call) {
          if (rank == 1) d.alter(call);
          return true;
        });
    const bool told =
        testing::Value(texts[0], HasSubstr(d.name)) || testing::Value(texts[1], HasSubstr(d.name));
    EXPECT_TRUE(told) << d.name << ": " << texts[0] << " / " << texts[1];
  }
  test::expect_good_call();
}

TEST_F(DeviceAllReduceCalls, AnIndexThatNamesNoRowIsTold) {
  const ArSpec spec{.pattern = Pattern::kMoEFinalizeARResidualRMSNorm, .tokens = 4, .hidden = 128};
  const std::vector<std::string> texts =
      texts_of_failure<UsageError>(spec, [&](int rank, ops::AllReduceCall& call) {
        if (rank == 1) std::get<ops::MoeFinalizeSource>(call.source).num_rows = 2;
        return true;
      });
  EXPECT_THAT(texts[1], HasSubstr("expanded_idx_to_permuted_idx"));
  test::expect_good_call();
}

TEST_F(DeviceAllReduceCalls, BeyondTheCapacityIsAUsageError) {
  const std::vector<std::string> texts =
      texts_of_failure<UsageError>({.tokens = 4, .hidden = 128}, [](int, ops::AllReduceCall& call) {
        call.shape.tokens = 5;
        return true;
      });
  EXPECT_THAT(texts[0] + texts[1], HasSubstr("the workspace holds"));
  test::expect_good_call();
}

TEST_F(DeviceAllReduceCalls, AHundredWorkspacesLeakNothing) {
  test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    test::take_seat(g);
    const ArSpec spec{.tokens = 512, .hidden = 7168};
    auto build = [&] { DeviceAllReduce workspace(g, test::capacity_of(spec), test::seated(g)); };
    build();  // what the driver keeps for itself
    g.barrier("memory before");
    const std::size_t before = free_gpu_bytes();
    g.barrier("memory measured");
    for (int i = 0; i < 100; ++i) build();
    g.barrier("memory after");
    const std::size_t after = free_gpu_bytes();
    constexpr std::size_t kSlack = 8 << 20;  // one workspace takes 88 MB
    EXPECT_GE(after + kSlack, before);
    EXPECT_GT(std::size_t(device_allreduce_bytes(test::capacity_of(spec))), 7 * kSlack);
  }));
}

// Two workspaces of one group, each on a stream of its own.
TEST_F(DeviceAllReduceCalls, TwoWorkspacesOnTwoStreams) {
  const ArSpec spec{.tokens = 30, .hidden = 1024};
  std::vector<ArData> one = test::make_data(spec), two = test::make_data(spec);
  test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    test::take_seat(g);
    DeviceRank a(g, spec), b(g, spec);
    const auto me = std::size_t(g.rank());
    const ops::AllReduceCall first = one[me].call(), second = two[me].call();
    api::AllReduceMirror ma(first), mb(second);
    g.barrier("inputs uploaded");
    for (int i = 0; i < 200; ++i) {
      a.workspace.run(ma.call(), a.stream.get());
      b.workspace.run(mb.call(), b.stream.get());
    }
    a.workspace.wait(a.stream.get());
    b.workspace.wait(b.stream.get());
    g.barrier("calls ended");
    ma.download();
    mb.download();
  }));
  EXPECT_EQ(test::compare_with_oracle(spec, test::calls_of(one), one[0]), "");
  EXPECT_TRUE(same_bits(one[1].outputs(), two[0].outputs()));
}

}  // namespace
}  // namespace switchyard::comm
