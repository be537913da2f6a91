// SPDX-License-Identifier: Apache-2.0
// Layers of ranks on GPUs, or on one that they share: bit for bit the contract that the ranks' own
// fp32 rows, weights and shared shards make, and the oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "switchyard/base/device_stream.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/rank_judge.h"
#include "switchyard/layer/rank_layer.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/device_share.h"
#include "tests/cases/finalize_case.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/rank_case.h"
#include "tests/comm/device_allreduce_ranks.h"
#include "tests/support/device.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using comm::Group;
using layer::RankLayer;
using test::Behind;
using test::Call;
using test::EndOf;
using test::LeafCase;
using test::Mode;
using testing::HasSubstr;

constexpr std::int64_t kCapacity = 67;
constexpr Mode kModes[] = {{Parallel::kTep, 1}, {Parallel::kTtp, 0}};
constexpr Ending kEndings[] = {Ending::kPlain, Ending::kFused, Ending::kReduce};

layer::RankOptions options_of(const layer::Layer& whole, const Mode& m, Ending ending, int ranks) {
  layer::RankOptions o = test::rank_options(whole, m.on(ranks));
  o.capacity = kCapacity;
  o.ending = ending;
  o.shared_gpu = test::share_a_gpu(ranks);
  return o;
}

/// What a case's ranks must give for some tokens.
struct Wanted {
  Wanted(const layer::Layer& whole, const test::Parts& parts, std::int64_t tokens,
         std::uint64_t seed = 30)
      : call(whole, tokens, seed), chosen(test::chosen_on_device(call)) {
    for (const auto& part : parts) shares.push_back(test::device_share_of(*part, call, chosen));
  }
  Call call;
  test::Chosen chosen;
  std::vector<test::Share> shares;
};

/// A residual and a norm behind a layer on the GPU.
struct BehindOnDevice {
  explicit BehindOnDevice(const Behind& host)
      : residual(host.residual),
        gamma(host.gamma),
        residual_out(std::vector<std::byte>(host.residual_out.size(), std::byte(0xff))),
        norm_out(std::vector<std::byte>(host.norm_out.size(), std::byte(0xff))) {}
  BehindLayer args() const {
    return {.residual_in = residual.data(),
            .rms_gamma = gamma.data(),
            .rms_eps = Behind::kEps,
            .weight_bias = Behind::kWeightBias,
            .residual_out = residual_out.data(),
            .norm_out = norm_out.data()};
  }
  test::OnDevice<std::byte> residual, gamma, residual_out, norm_out;
};

/// A rank's call in memory of the GPU. Ranks that share one meet around what allocates or frees.
struct RankCall {
  RankCall(RankLayer& r, const Call& call)
      : rank(r),
        hidden(call.hidden),
        out(std::vector<std::byte>(call.out.size(), std::byte(0xff))),
        workspace(std::vector<std::byte>(r.workspace_bytes(), std::byte(0xff))) {
    args.tokens = call.tokens;
    args.hidden = hidden.data();
    args.hidden_stride = args.out_stride = call.layer.problem().hidden;
    args.out = out.data();
    args.stream = stream.get();
    args.workspace = {workspace.data(), workspace.memory.size()};
  }
  /// What the output holds once every rank has ended.
  std::vector<std::byte> result() {
    rank.wait(stream.get());
    rank.group().barrier("calls ended");
    return out.get();
  }

  RankLayer& rank;
  DeviceStream stream;
  test::OnDevice<std::byte> hidden, out, workspace;
  ForwardArgs args;
};

/// One call on copies of `call`'s tokens. Collective.
std::vector<std::byte> run_from_host(RankLayer& rank, const Call& call) {
  std::vector<std::byte> out(call.out.size(), std::byte(0xff));
  ForwardArgs a;
  a.tokens = call.tokens;
  a.hidden = call.hidden.data();
  a.hidden_stride = a.out_stride = call.layer.problem().hidden;
  a.out = out.data();
  layer::forward_from_host(rank, a);
  return out;
}

class DeviceRanks : public test::NeedsGpu, public testing::WithParamInterface<std::string> {
 protected:
  const leaves::Leaf& leaf() const { return *leaves::find_leaf(GetParam(), Device::kCuda).leaf; }
  LeafCase base(std::int64_t inter = 256, bool shared = false) const {
    LeafCase c = shared ? test::shared_case(leaf(), inter / 2)
                        : LeafCase{test::small_problem(leaf()), {}, 9};
    c.problem.inter = inter;
    c.options.device = Device::kCuda;
    return c;
  }
  MoeLayer build(const LeafCase& c) const {
    return test::build_layer(test::make_weights(c.problem, leaf()), c.options, CpuIsa::kPortable);
  }
  /// Every rank's part, on GPU 0.
  test::Parts parts_of(const MoeLayer& whole, const Mode& m, int ranks) const {
    return test::parts_of(whole.impl(), m.on(ranks), ranks);
  }
  /// Runs f(group, layer) on ranks with GPUs, and meets before the layers go.
  template <class F>
  void on_ranks(const MoeLayer& whole, const Mode& m, Ending ending, int ranks, F&& f) const {
    test::expect_all_well(test::on_thread_ranks(ranks, test::gpu_deadlines(), [&](Group& g) {
      test::take_seat(g);
      RankLayer rank(g, test::with_declared_scales(whole.impl()),
                     options_of(whole.impl(), m, ending, ranks));
      f(g, rank);
      g.barrier("the layers are done");
    }));
  }
  /// The contract at several token counts, each with a control that is not met.
  void expect_contract(const LeafCase& c, const Mode& m, int ranks, std::span<const Ending> endings,
                       const std::string& what) const {
    const MoeLayer whole = build(c);
    const test::Parts parts = parts_of(whole, m, ranks);
    std::vector<std::unique_ptr<Wanted>> wanted;
    for (std::int64_t tokens : {0, 1, 5, 67})
      wanted.push_back(std::make_unique<Wanted>(whole.impl(), parts, tokens));
    for (Ending ending : endings)
      on_ranks(whole, m, ending, ranks, [&](Group& g, RankLayer& rank) {
        for (const auto& w : wanted) {
          const std::vector<std::byte> got = run_from_host(rank, w->call);
          SCOPED_TRACE(cat(what, ", ", to_string(m.parallel), " on ", ranks, " ranks, ",
                           to_string(ending), ", ", w->call.tokens, " tokens, rank ", g.rank()));
          const EndOf end{parts, w->shares, ending, w->call};
          EXPECT_TRUE(test::same_bits(got, end.output()));
          if (w->call.tokens < 5) continue;
          const EndOf without{parts, w->shares, ending, w->call, 0};  // never an empty shard
          EXPECT_FALSE(test::same_bits(got, without.output())) << "the control";
        }
      });
  }
};

TEST_P(DeviceRanks, KeepTheirContractBitForBit) {
  for (const Mode& m : kModes)
    for (const int ranks : {2, 4})
      for (const float factor : {1.0F, 2.5F})
        for (const bool shared : {false, true}) {
          LeafCase c = base(256, shared);
          c.problem.routed_scaling_factor = factor;
          expect_contract(c, m, ranks, kEndings, cat("factor ", factor, shared ? ", shared" : ""));
        }
}

// Three shards of 32 columns and an empty one; the shared expert's are 64 wide, or nothing.
TEST_P(DeviceRanks, EmptyShardsAddNothing) {
  LeafCase c = base(96, true);
  Deployment d;
  d.device = Device::kCuda;
  d.tp = 4;
  d.env = resolve::environment();
  if (!leaf().can_implement(c.problem, d).eligible()) GTEST_SKIP() << "blocks would be cut";
  c.problem.shared_inter = 64;
  c.problem.num_shared = 1;
  expect_contract(c, {Parallel::kTtp, 0}, 4, kEndings, "an empty shard");
}

TEST_P(DeviceRanks, WeightsOnTheInputZeroExpertsAndBiases) {
  constexpr Ending kWithZeros[] = {Ending::kPlain, Ending::kFused};
  for (const Mode& m : kModes) {
    LeafCase c = base();
    c.problem.routed_scaling_factor = 2.5F;
    c.problem.routing.zero_experts = 2;
    expect_contract(c, m, 2, kWithZeros, "zero experts");
    c.problem.routing.zero_experts = 0;
    c.problem.routing.placement = WeightPlacement::kInput;
    expect_contract(c, m, 2, kEndings, "weights on the input");
    c = base();
    c.problem.expert_bias = true;
    c.problem.activation = SwigluBias{1.702F, 1.0F, PerExpert(7.0F)};
    expect_contract(c, m, 2, kEndings, "biases");
  }
}

TEST_P(DeviceRanks, FusedSharedExpertsAreShardsOfTheirOwn) {
  LeafCase c = test::shared_case(leaf(), 256);
  c.options.device = Device::kCuda;
  c.options.fuse_shared = true;
  c.problem.routed_scaling_factor = 2.5F;
  if (build(c).impl().routed().shape.unscaled_choices == 0) GTEST_SKIP() << "not fused";
  constexpr Ending kPlain[] = {Ending::kPlain};
  expect_contract(c, {Parallel::kTtp, 0}, 2, kPlain, "fused shared experts");
}

TEST_P(DeviceRanks, ResidualAndNormStandBehind) {
  constexpr int kRanks = 2;
  for (const Mode& m : kModes)
    for (const Ending ending : {Ending::kFused, Ending::kReduce}) {
      LeafCase c = base(256, true);
      c.problem.routed_scaling_factor = 2.5F;
      const MoeLayer whole = build(c);
      const test::Parts parts = parts_of(whole, m, kRanks);
      for (const std::int64_t tokens : {1, 67}) {
        const Wanted w(whole.impl(), parts, tokens);
        const Behind given(Dtype::kBf16, tokens, c.problem.hidden);
        Behind want = given;
        EndOf{parts, w.shares, ending, w.call}.write(want);
        on_ranks(whole, m, ending, kRanks, [&](Group& g, RankLayer& rank) {
          RankCall call(rank, w.call);
          const BehindOnDevice behind(given);
          g.barrier("inputs uploaded");
          rank.forward(call.args, behind.args());
          call.result();
          EXPECT_TRUE(test::same_bits(behind.residual_out.get(), want.residual_out)) << tokens;
          EXPECT_TRUE(test::same_bits(behind.norm_out.get(), want.norm_out)) << tokens;
          EXPECT_EQ(call.out.get(), std::vector<std::byte>(w.call.out.size(), std::byte(0xff)))
              << "out is not written";
          g.barrier("read");
        });
      }
    }
}

// Nothing is allocated or waited for on the way: the call is captured, and replayed with the tokens
// that are there then.
TEST_P(DeviceRanks, CallsAreCapturedAndReplayed) {
  constexpr int kRanks = 2;
  for (const Mode& m : kModes)
    for (const Ending ending : kEndings)
      for (const std::int64_t tokens : {1, 40}) {
        const MoeLayer whole = build(base(256, true));
        const test::Parts parts = parts_of(whole, m, kRanks);
        const Wanted first(whole.impl(), parts, tokens), later(whole.impl(), parts, tokens, 31);
        const std::vector<std::byte> want = EndOf{parts, first.shares, ending, first.call}.output(),
                                     then = EndOf{parts, later.shares, ending, later.call}.output();
        EXPECT_NE(want, then);
        on_ranks(whole, m, ending, kRanks, [&](Group& g, RankLayer& rank) {
          RankCall call(rank, first.call);
          std::optional<DeviceGraph> graph;
          graph.emplace(call.stream, [&] { rank.forward(call.args); });
          g.barrier("graphs recorded");
          graph->run();
          EXPECT_TRUE(test::same_bits(call.result(), want));
          g.barrier("read");
          call.hidden.memory.upload(later.call.hidden.data());
          g.barrier("other tokens");
          rank.forward(call.args);  // eager calls and graphs mix
          EXPECT_TRUE(test::same_bits(call.result(), then));
          g.barrier("read");
          graph->run();
          EXPECT_TRUE(test::same_bits(call.result(), then));
          g.barrier("read");
        });
      }
}

TEST_P(DeviceRanks, StridesSkipsAndCounts) {
  constexpr int kRanks = 2;
  constexpr std::int64_t kTokens = 20, kGap = 11;
  const Mode m{Parallel::kTep, 1};
  const MoeLayer whole = build(base());
  const std::int64_t hidden = whole.impl().problem().hidden, k = whole.impl().problem().top_k();
  const test::Parts parts = parts_of(whole, m, kRanks);
  Call call(whole.impl(), kTokens, 30);
  test::GivenRouting routing(whole.impl().problem(), kTokens);
  for (std::size_t i = 0; i < routing.ids.size(); i += 4) {
    routing.ids[i] = -1;
    routing.weights[i] = NAN;
  }
  for (std::size_t i = 0; i < std::size_t(k); ++i) routing.ids[i] = -1;  // a whole token
  std::vector<test::Share> shares;
  for (const auto& part : parts)
    shares.push_back(test::device_share_of(*part, call, {routing.ids, routing.weights}));
  std::vector<std::int64_t> counts(6);
  for (std::int32_t id : routing.ids)
    if (id >= 0) ++counts[std::size_t(id)];
  for (const Ending ending : kEndings) {
    const std::vector<std::byte> want = EndOf{parts, shares, ending, call}.output();
    on_ranks(whole, m, ending, kRanks, [&](Group&, RankLayer& rank) {
      std::vector<std::uint16_t> wide(std::size_t(kTokens * (hidden + kGap)), 0x1234);
      std::vector<std::int64_t> counted(6);
      ForwardArgs a;
      a.tokens = kTokens;
      a.hidden = call.hidden.data();
      a.hidden_stride = hidden;
      a.routing = {routing.ids.data(), routing.weights.data(), nullptr};
      a.out = wide.data();
      a.out_stride = hidden + kGap;
      a.expert_counts = counted.data();
      layer::forward_from_host(rank, a);
      EXPECT_EQ(counted, counts) << "by expert, not by the rank's numbers";
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const std::uint16_t* row = wide.data() + t * (hidden + kGap);
        EXPECT_EQ(0, std::memcmp(row, want.data() + t * hidden * 2, std::size_t(hidden) * 2))
            << to_string(ending) << " token " << t;
        for (std::int64_t i = hidden; i < hidden + kGap && t + 1 < kTokens; ++i)
          EXPECT_EQ(row[i], 0x1234) << "the gap behind row " << t;
      }
    });
  }
}

// The ranks' oracle accepts them, and not another weight.
TEST_P(DeviceRanks, AreJudgedByTheirOracle) {
  for (const Mode& m : kModes)
    for (const Ending ending : kEndings)
      for (const int ranks : {2, 4}) {
        LeafCase c = base(256, true);
        c.problem.routed_scaling_factor = 2.5F;
        const MoeLayer whole = build(c);
        on_ranks(whole, m, ending, ranks, [&](Group&, RankLayer& rank) {
          const Call call(whole.impl(), 9, 30);
          const layer::JudgeArgs ask{9, call.exact.data(), nullptr, {}};
          const layer::Judgement j = judge_ranks(rank, ask);
          EXPECT_TRUE(j.ok(budgets_of(rank)))
              << to_string(m.parallel) << " " << to_string(ending) << ": rel L2 " << j.rel_l2_oracle
              << ", " << j.codes_differing << " of " << j.codes << " codes";
          EXPECT_GT(j.rel_l2_oracle, 0);
          auto& weights = const_cast<checkpoint::LayerWeights&>(rank.part().weights());
          const checkpoint::ExpertSource own = weights.expert;
          weights.expert = [own](std::int64_t e) { return own(e == 0 ? 1 : 0); };
          EXPECT_FALSE(judge_ranks(rank, ask).ok(budgets_of(rank))) << "others' weights";
        });
      }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceRanks,
                         testing::Values("bf16", "fp8_block_scales", "nvfp4", "w4a16_mxfp4"),
                         [](const auto& info) { return info.param; });

class DeviceRanksFaults : public test::NeedsGpu {
 protected:
  static LeafCase small() {
    LeafCase c{test::small_problem(leaf()), {}, 9};
    c.options.device = Device::kCuda;
    return c;
  }
  static const leaves::Leaf& leaf() { return *leaves::find_leaf("bf16", Device::kCuda).leaf; }
};

/// Waits until the group is aborted, for as long as a test may last.
void await_abort(const Group& g) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!g.aborted() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(DeviceRanksFaults, ARankThatDoesNotComeIsNamedInTime) {
  const comm::Deadlines brief{.warm_up = std::chrono::seconds(2),
                              .serving = std::chrono::seconds(2)};
  const MoeLayer whole = test::build_layer(test::make_weights(small().problem, leaf()),
                                           small().options, CpuIsa::kPortable);
  for (const Ending ending : kEndings) {
    std::string told, again;
    const auto start = std::chrono::steady_clock::now();
    test::expect_all_well(test::on_thread_ranks(2, brief, [&](Group& g) {
      test::take_seat(g);
      RankLayer rank(g, test::with_declared_scales(whole.impl()),
                     options_of(whole.impl(), kModes[0], ending, 2));
      RankCall call(rank, Call(whole.impl(), 5, 30));
      g.barrier("inputs uploaded");
      if (g.rank() == 1) return await_abort(g);
      for (std::string* text : {&told, &again}) try {
          rank.forward(call.args);
          rank.wait(call.stream.get());
        } catch (const comm::PeerError& e) {
          *text = e.what();
        }
    }));
    EXPECT_THAT(told, HasSubstr("rank 0 waited 2 s on its GPU for rank 1"));
    EXPECT_EQ(again, told);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
    // The GPU is as before: a good call on a new group.
    const test::Parts parts = test::parts_of(whole.impl(), kModes[0], 2);
    const Wanted w(whole.impl(), parts, 5);
    test::expect_all_well(test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
      test::take_seat(g);
      RankLayer rank(g, test::with_declared_scales(whole.impl()),
                     options_of(whole.impl(), kModes[0], ending, 2));
      RankCall call(rank, w.call);
      g.barrier("inputs uploaded");
      rank.forward(call.args);
      EXPECT_TRUE(test::same_bits(call.result(), EndOf{parts, w.shares, ending, w.call}.output()));
      g.barrier("read");
    }));
  }
}

// Ranks that disagree on the tokens are told on both sides.
TEST_F(DeviceRanksFaults, UnlikeTokensAreRefused) {
  const MoeLayer whole = test::build_layer(test::make_weights(small().problem, leaf()),
                                           small().options, CpuIsa::kPortable);
  const test::Outcomes out = test::on_thread_ranks(2, test::gpu_deadlines(), [&](Group& g) {
    test::take_seat(g);
    RankLayer rank(g, test::with_declared_scales(whole.impl()),
                   options_of(whole.impl(), kModes[0], Ending::kPlain, 2));
    RankCall call(rank, Call(whole.impl(), 3 + g.rank(), 30));
    g.barrier("inputs uploaded");
    rank.forward(call.args);
    rank.wait(call.stream.get());
  });
  EXPECT_TRUE(out[0] && out[1]);
  for (int r : {0, 1})  // one saw it, the other is told why that one gave up
    EXPECT_THAT(test::text_of<DeviceError>(out[std::size_t(r)]), HasSubstr("tokens"))
        << "rank " << r;
}

}  // namespace
}  // namespace switchyard
