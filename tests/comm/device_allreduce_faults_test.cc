// SPDX-License-Identifier: Apache-2.0
// Ranks between GPUs, or on one that they share, that are silent, late or give up; and what is
// still queued behind the trouble.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tests/comm/device_allreduce_ranks.h"

namespace switchyard::comm {
namespace {

using ops::AllReduceStrategy;
using std::chrono::seconds;
using test::ArData;
using test::ArSpec;
using test::DeviceRank;
using testing::HasSubstr;

constexpr AllReduceStrategy kBoth[] = {AllReduceStrategy::kOneShot, AllReduceStrategy::kTwoShot};

/// Each test's waits end by deadlines of its own, the good call behind it included; one that takes
/// longer than this has waited for something else.
class DeviceAllReduceFaults : public test::NeedsGpu {
 protected:
  void TearDown() override {
    if (IsSkipped()) return;
    test::expect_good_call();
    EXPECT_LT(std::chrono::steady_clock::now() - start_, seconds(60)) << "a deadline was not kept";
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// One rank with a call of a spec on its GPU.
struct Caller {
  Caller(Group& group, const ArSpec& spec)
      : data(spec, group.rank()),
        host(data.call()),
        // Measuring costs would spend the first call's budget.
        rank(group, spec, {.cost = AllReduceCost{}}),
        mirror(host) {
    group.barrier("inputs uploaded");
  }
  void enqueue() { rank.workspace.run(mirror.call(), rank.stream.get()); }
  void wait() { rank.workspace.wait(rank.stream.get()); }
  /// What the workspace says of its trouble, by each of the three that tell.
  std::vector<std::string> texts() {
    std::vector<std::string> out;
    for (const std::function<void()>& ask :
         {std::function<void()>([&] { rank.workspace.check(); }),
          std::function<void()>([&] { wait(); }), std::function<void()>([&] { enqueue(); })})
      try {
        ask();
        out.emplace_back("nothing");
      } catch (const DeviceError& e) {
        out.emplace_back(e.what());
      }
    return out;
  }

  ArData data;
  ops::AllReduceCall host;
  DeviceRank rank;
  api::AllReduceMirror mirror;
};

/// Waits until the group is aborted, for as long as a test may last.
void await_abort(const Group& g) {
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (!g.aborted() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(DeviceAllReduceFaults, ASilentRankIsNamedInItsDeadline) {
  const Deadlines brief{.warm_up = seconds(1), .serving = seconds(30)};
  for (std::int64_t ranks : {2, 3, 8})
    for (AllReduceStrategy strategy : kBoth)
      for (std::int64_t tokens : {1, 300}) {
        const ArSpec spec{.ranks = ranks, .tokens = tokens, .hidden = 256, .strategy = strategy};
        std::vector<std::string> texts;
        test::expect_all_well(test::on_thread_ranks(int(ranks), brief, [&](Group& g) {
          test::take_seat(g);
          Caller caller(g, spec);
          if (g.rank() != 0) return await_abort(g);
          caller.enqueue();
          texts = caller.texts();
          texts[0] = texts[1];  // the first check() does not wait
        }));
        for (const std::string& text : texts) {
          EXPECT_THAT(text, HasSubstr("rank 0 waited 1 s on its GPU for rank ")) << spec.str();
          if (ranks == 2) {
            EXPECT_THAT(text, HasSubstr("for rank 1"));
          }
          EXPECT_THAT(text, HasSubstr("token"));
          EXPECT_EQ(text, texts[0]);
        }
      }
}

// One rank gives up on its host while another waits on its GPU, whose deadline is far away.
TEST_F(DeviceAllReduceFaults, ARankThatGivesUpEndsThePeersWaits) {
  for (AllReduceStrategy strategy : kBoth)
    for (std::int64_t ranks : {2, 4}) {
      const ArSpec spec{.ranks = ranks, .tokens = 40, .hidden = 256, .strategy = strategy};
      const auto start = std::chrono::steady_clock::now();
      std::vector<std::vector<std::string>> texts{std::size_t(ranks)};
      test::expect_all_well(test::on_thread_ranks(int(ranks), test::gpu_deadlines(), [&](Group& g) {
        test::take_seat(g);
        Caller caller(g, spec);
        if (g.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          return g.abort("rank 1 has other plans");  // and frees its slice
        }
        for (int i = 0; i < 5; ++i) caller.enqueue();
        try {
          caller.wait();
        } catch (const PeerError&) {
        }
        texts[std::size_t(g.rank())] = caller.texts();
      }));
      EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));
      for (std::size_t r = 0; r < texts.size(); ++r)
        for (const std::string& text : texts[r]) {
          EXPECT_THAT(text, HasSubstr("rank 1 gave up (rank 1 has other plans)")) << r;
          EXPECT_EQ(text, texts[r][0]);
        }
    }
}

// A mistake of the caller's on one rank: that rank goes on naming it, and the other does too.
TEST_F(DeviceAllReduceFaults, ARefusedCallEndsAllRanksWithItsText) {
  const ArSpec spec{.tokens = 4, .hidden = 128};
  std::vector<std::string> first(2), again(2);
  test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    test::take_seat(g);
    Caller caller(g, spec);
    const auto me = std::size_t(g.rank());
    ops::AllReduceCall call = caller.mirror.call();
    if (me == 1) call.shape.tokens = 5;
    auto text_of = [&](auto&& ask) -> std::string {
      try {
        ask();
      } catch (const std::exception& e) {
        return e.what();
      }
      return "nothing";
    };
    first[me] = text_of([&] {
      caller.rank.workspace.run(call, caller.rank.stream.get());
      caller.wait();
    });
    again[me] = text_of([&] { caller.enqueue(); });
  }));
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_THAT(first[r], HasSubstr("the workspace holds")) << r;
    EXPECT_EQ(again[r], first[r]);
  }
}

// Rank 0 has six calls queued when rank 1 does not come: the first may be taken later all the same,
// since none behind it writes over what it has sent. Rank 1's call is in a graph, which asks
// nobody.
TEST_F(DeviceAllReduceFaults, QueuedCallsSendNothingBehindATrouble) {
  const Deadlines brief{.warm_up = seconds(2), .serving = seconds(2)};
  for (AllReduceStrategy strategy : kBoth) {
    ArSpec spec{.tokens = 40, .hidden = 256, .strategy = strategy}, other = spec;
    other.seed = 77;
    ArData late(spec, 1);
    std::string told, told_late;
    test::expect_all_well(test::on_thread_ranks(2, brief, [&](Group& g) {
      test::take_seat(g);
      ArData mine(spec, g.rank()), others(other, g.rank());
      const ops::AllReduceCall host = g.rank() == 0 ? mine.call() : late.call(),
                               next = others.call();
      DeviceRank rank(g, spec);
      api::AllReduceMirror mirror(host), behind(next);
      auto enqueue = [&](const api::AllReduceMirror& m) {
        rank.workspace.run(m.call(), rank.stream.get());
      };
      std::optional<DeviceGraph> graph;
      graph.emplace(rank.stream, [&] { enqueue(mirror); });
      g.barrier("all is made");
      if (g.rank() == 0) {
        enqueue(mirror);
        for (int i = 0; i < 5; ++i) enqueue(behind);
        try {
          rank.workspace.wait(rank.stream.get());
        } catch (const PeerError& e) {
          told = e.what();
        }
        graph->run();  // nothing either
      } else {
        await_abort(g);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the queue has run out
        graph->run();
        mirror.download();
        try {
          rank.workspace.check();
        } catch (const PeerError& e) {
          told_late = e.what();
        }
      }
    }));
    EXPECT_THAT(told, HasSubstr("rank 0 waited 2 s on its GPU for rank 1"));
    // What rank 0 sent of the first call is all there. Rows that rank 0 owns it could not sum, so
    // it sent none.
    const std::vector<ArData> want = test::run_ranks(spec, {}, 1);
    if (strategy == AllReduceStrategy::kOneShot) {
      EXPECT_TRUE(test::same_bits(test::comparable(spec, late), test::comparable(spec, want[1])));
    } else {
      const auto row = std::size_t(spec.hidden) * size_of(spec.dtype);
      for (std::size_t m = 1; m < std::size_t(spec.tokens); m += 2)  // those that rank 1 owns
        EXPECT_TRUE(std::equal(late.residual_out.bytes.begin() + std::ptrdiff_t(m * row),
                               late.residual_out.bytes.begin() + std::ptrdiff_t((m + 1) * row),
                               want[1].residual_out.bytes.begin() + std::ptrdiff_t(m * row)))
            << m;
      EXPECT_THAT(told_late, HasSubstr("for rank 0 in allreduce owned rows"));
    }
  }
}

// A graph that is captured before any call ran must not keep the first call's budget.
TEST_F(DeviceAllReduceFaults, AGraphWaitsAsLongAsTheCallThatItReplays) {
  const Deadlines deadlines{.warm_up = seconds(40), .serving = seconds(1)};
  const ArSpec spec{.tokens = 3, .hidden = 128};
  std::string told;
  const auto start = std::chrono::steady_clock::now();
  test::expect_all_well(test::on_thread_ranks(2, deadlines, [&](Group& g) {
    test::take_seat(g);
    Caller caller(g, spec);
    DeviceGraph graph(caller.rank.stream, [&] { caller.enqueue(); });
    g.barrier("graphs recorded");
    graph.run();  // the first call: rank 1 may come late
    caller.wait();
    if (g.rank() == 1) return await_abort(g);
    graph.run();
    told = caller.texts()[0];
  }));
  EXPECT_THAT(told, HasSubstr("rank 0 waited 1 s on its GPU for rank 1"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(30));
}

// And the first call's budget is the warm-up's.
TEST_F(DeviceAllReduceFaults, TheFirstCallMayWaitLonger) {
  const Deadlines deadlines{.warm_up = seconds(20), .serving = seconds(1)};
  const ArSpec spec{.tokens = 3, .hidden = 128};
  test::expect_all_well(test::on_thread_ranks(2, deadlines, [&](Group& g) {
    test::take_seat(g);
    Caller caller(g, spec);
    if (g.rank() == 1) std::this_thread::sleep_for(seconds(3));
    caller.enqueue();
    caller.wait();
  }));
}

TEST_F(DeviceAllReduceFaults, SharingAGpuIsAskedForByName) {
  const test::Outcomes outcomes = test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    use_gpu(0);
    DeviceAllReduce workspace(g, {.ranks = 2, .max_tokens = 4, .hidden = 64});
  });
  for (const std::exception_ptr& o : outcomes)
    EXPECT_THAT(test::text_of<UsageError>(o), HasSubstr("2 ranks share a GPU"));
}

}  // namespace
}  // namespace switchyard::comm
