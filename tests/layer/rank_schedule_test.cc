// SPDX-License-Identifier: Apache-2.0
// What the schedulers of ranks may choose without changing a bit: where rows are quantised, how
// many exchanges a call takes, and who sums the experts' rows.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <barrier>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/layer/rank_judge.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/share_case.h"
#include "tests/comm/thread_ranks.h"
#include "tests/meter/allocation_meter.h"
#include "tests/support/same_bits.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using comm::Group;
using layer::RankLayer;
using layer::RankOptions;
using test::Call;
using test::EveryLeaf;
using test::expect_all_well;
using test::long_deadlines;
using test::on_thread_ranks;
using testing::HasSubstr;

constexpr std::int64_t kCapacity = 9;
using Bytes = std::vector<std::byte>;

const comm::Strategy* const kStrategies[] = {&comm::one_sided(),    &comm::two_sided(),
                                             &comm::all_gather(),   &comm::compact(),
                                             &comm::expert_major(), &comm::fused()};

RankOptions options_of(const layer::Layer& whole, const comm::Strategy* strategy) {
  RankOptions o;
  o.layer = whole.options();
  o.layer.pool = std::make_shared<ThreadPool>(1);
  o.strategy = strategy;
  o.capacity = kCapacity;
  return o;
}

/// A rank's layer with a workspace that ends in a guard.
class Part {
 public:
  Part(Group& g, const layer::Layer& whole, const RankOptions& o)
      : Part(g, test::with_declared_scales(whole), o) {}
  Part(Group& g, checkpoint::LayerWeights weights, const RankOptions& o)
      : layer(g, std::move(weights), o), memory_(layer.workspace_bytes() + kGuard) {}

  Bytes run(Call& call, const test::GivenRouting& routing) {
    std::ranges::fill(memory_.bytes(), kPoison);
    std::ranges::fill(call.out, std::byte{0xff});
    layer.forward(args(call, routing));
    EXPECT_EQ(std::ranges::count(memory_.bytes().last(kGuard), kPoison), kGuard);
    EXPECT_TRUE(layer.canaries_intact());
    return call.out;
  }
  ForwardArgs args(Call& call, const test::GivenRouting& routing) {
    ForwardArgs a = call.args();
    a.routing = {.ids = routing.ids.data(), .weights = routing.weights.data()};
    a.workspace = memory_.bytes().first(memory_.bytes().size() - kGuard);
    return a;
  }
  RankLayer layer;

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kPoison{0xc5};
  HostBuffer memory_;
};

/// The names of the steps that a rank takes.
struct Steps {
  layer::StepListener listener() {
    return {this, [](void* self, layer::RankStep step) {
              static_cast<Steps*>(self)->names += cat(to_string(step), " ");
            }};
  }
  std::string names;
};

class Schedules : public EveryLeaf {};

TEST_P(Schedules, RowsThatTheirSenderQuantisesGiveTheSameBitsInFewerBytes) {
  const MoeLayer whole = build(base());
  const bool quantises = leaf().activation != formats::ActivationQuant::kNone;
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    for (const comm::Strategy* strategy : kStrategies) {
      RankOptions o = options_of(whole.impl(), strategy);
      Part first(g, whole.impl(), o);
      o.quantise_first = false;
      Part behind(g, whole.impl(), o);
      const layer::Payload &coded = first.layer.payload(), &plain = behind.layer.payload();
      EXPECT_EQ(coded.quantised(), quantises);
      EXPECT_FALSE(plain.quantised());
      EXPECT_THAT(plain.why_not, HasSubstr(quantises ? "SWITCHYARD_POST_QUANT_DISPATCH is 0"
                                                     : "unquantised activations"));
      if (quantises) {
        EXPECT_LT(coded.row_bytes + coded.scale_bytes, plain.row_bytes * 3 / 5) << coded.text();
        EXPECT_EQ(coded.text(), to_string(leaf().activation));
      }
      for (std::int64_t tokens : {g.rank() == 0 ? kCapacity : 4, g.rank() == 0 ? 0 : kCapacity}) {
        Call call(whole.impl(), tokens, 30 + std::uint64_t(g.rank()));
        const test::GivenRouting routing(whole.problem(), tokens);
        const Bytes want = behind.run(call, routing);
        EXPECT_TRUE(test::same_bits(first.run(call, routing), want)) << strategy->name;
        Call other(whole.impl(), tokens, 40 + std::uint64_t(g.rank()));
        const Bytes far = first.run(other, routing);
        EXPECT_TRUE(tokens == 0 || !test::same_bits(far, want)) << "the control: other tokens";
      }
    }
  }));
}

// Where weights multiply the rows in front of the quantiser, each expert's input is its own.
TEST_P(Schedules, WeightsOnTheInputKeepRowsAsTheyAre) {
  test::LeafCase c = base();
  c.problem.routing.placement = WeightPlacement::kInput;
  if (!leaf().can_implement(c.problem, Deployment{}).eligible()) GTEST_SKIP() << "not served";
  const MoeLayer whole = build(c);
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    Part pushed(g, whole.impl(), options_of(whole.impl(), &comm::one_sided()));
    Part fused(g, whole.impl(), options_of(whole.impl(), &comm::fused()));
    EXPECT_FALSE(pushed.layer.payload().quantised());
    Call call(whole.impl(), 7, 30 + std::uint64_t(g.rank()));
    const test::GivenRouting routing(whole.problem(), 7);
    const Bytes want = pushed.run(call, routing);
    EXPECT_TRUE(test::same_bits(fused.run(call, routing), want));
  }));
}

// Three ranks of 9, 0 and 5 tokens in exchanges of 2: five, in which two ranks run dry.
TEST_P(Schedules, ChunksOfACallGiveTheBitsOfTheWhole) {
  const MoeLayer whole = build(base());
  constexpr std::int64_t kTokens[] = {kCapacity, 0, 5};
  expect_all_well(on_thread_ranks(3, long_deadlines(), [&](Group& g) {
    for (const comm::Strategy* strategy :
         {&comm::one_sided(), &comm::two_sided(), &comm::expert_major()}) {
      RankOptions o = options_of(whole.impl(), strategy);
      o.balanced = strategy == &comm::one_sided();
      Part at_once(g, whole.impl(), o);
      o.chunk = 2;
      Part cut(g, whole.impl(), o);
      for (int shift = 0; shift < 3; ++shift) {
        const std::int64_t tokens = kTokens[(g.rank() + shift) % 3];
        Call call(whole.impl(), tokens, 50 + std::uint64_t(g.rank()));
        const test::GivenRouting routing(whole.problem(), tokens);
        const Bytes want = at_once.run(call, routing);
        EXPECT_TRUE(test::same_bits(cut.run(call, routing), want)) << strategy->name;
      }
      if (!o.balanced) continue;
      const std::vector<std::int64_t> counts = cut.layer.take_counts();
      EXPECT_EQ(counts, at_once.layer.take_counts()) << "counted once a call, not once a chunk";
      EXPECT_GT(std::ranges::max(counts), 0);
    }
  }));
}

/// The steps of a layer's only call on ranks of 9, 0 and 5 tokens, which are the same on all.
template <class Spoil>
std::string steps_of(const MoeLayer& whole, const comm::Strategy* strategy, Spoil&& spoil) {
  std::string names[3];
  expect_all_well(on_thread_ranks(3, long_deadlines(), [&](Group& g) {
    constexpr std::int64_t kTokens[] = {kCapacity, 0, 5};
    RankOptions o = options_of(whole.impl(), strategy);
    Steps steps;
    o.listener = steps.listener();
    spoil(o);
    const bool alike = o.parallel == Parallel::kTep;
    const std::int64_t tokens = kTokens[alike ? 0 : g.rank()];
    Part part(g, whole.impl(), o);
    Call call(whole.impl(), tokens, 80 + (alike ? 0U : std::uint64_t(g.rank())));
    part.run(call, test::GivenRouting(whole.problem(), tokens));
    names[g.rank()] = steps.names;
  }));
  EXPECT_EQ(names[0], names[1]);
  EXPECT_EQ(names[0], names[2]);
  return names[0];
}

// The order of the hooks: the slots are waited for around the routing, counts come before choices
// become slots, rows are quantised before or behind the dispatch, and the slots are released behind
// the last experts and in front of the last combine.
TEST_P(Schedules, StepsComeInTheirOrderOnEveryRank) {
  const MoeLayer whole = build(base());
  const bool quantises = leaf().activation != formats::ActivationQuant::kNone;
  const std::string quantise = quantises ? "quantise " : "";
  const auto balanced = [](RankOptions& o) { o.balanced = true; };
  for (const comm::Strategy* strategy : {&comm::one_sided(), &comm::two_sided(), &comm::compact(),
                                         &comm::expert_major(), &comm::all_gather()})
    EXPECT_EQ(steps_of(whole, strategy, balanced),
              "start_wait route done_wait count place " + quantise +
                  "dispatch gather experts start_set combine done_set ")
        << strategy->name;
  EXPECT_EQ(steps_of(whole, &comm::one_sided(),
                     [](RankOptions& o) { o.balanced = true, o.quantise_first = false; }),
            "start_wait route done_wait count place dispatch gather experts start_set combine "
            "done_set ");
  EXPECT_EQ(steps_of(whole, &comm::one_sided(), [](RankOptions&) {}),
            "route place " + quantise + "dispatch experts combine ");
  EXPECT_EQ(
      steps_of(whole, &comm::two_sided(), [](RankOptions& o) { o.balanced = true, o.chunk = 4; }),
      "start_wait route done_wait count place " + quantise + "dispatch gather experts combine " +
          quantise + "dispatch experts combine " + quantise +
          "dispatch experts start_set combine done_set ");
  EXPECT_EQ(steps_of(whole, &comm::fused(),
                     [](RankOptions& o) { o.balanced = true, o.capacity = 3 * kCapacity; }),
            "start_wait route done_wait count place " + quantise +
                "dispatch gather experts start_set done_set ")
      << "one batch of all rows";
  EXPECT_EQ(steps_of(whole, nullptr,
                     [](RankOptions& o) { o.balanced = true, o.parallel = Parallel::kTep; }),
            "start_wait route done_wait count place gather experts start_set combine done_set ");
  EXPECT_EQ(
      steps_of(whole, &comm::all_gather(),
               [](RankOptions& o) { o.balanced = true, o.parallel = Parallel::kDtp, o.tp = 3; }),
      "start_wait route done_wait count place dispatch gather experts start_set combine "
      "done_set ");
}

/// Sums rows as the layer would, but for the rounding of each.
void sum_rows(void* calls, const DispatchedRows& r, Dtype dtype) {
  ++*static_cast<std::atomic<int>*>(calls);
  std::fill_n(r.sum, r.tokens * r.width, 0.0F);
  for (std::int64_t i = 0; i < r.tokens * r.choices; ++i) {
    if (r.index[i] < 0) continue;
    for (std::int64_t h = 0; h < r.width; ++h)
      r.sum[i / r.choices * r.width + h] +=
          r.weights[i] * load_element(dtype, r.rows, r.index[i] * r.width + h);
  }
}

TEST_P(Schedules, ACallersFinalizeStandsInFrontOfTheCombine) {
  const MoeLayer whole = build(base());
  const Problem& p = whole.problem();
  std::atomic<int> calls = 0;
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
    for (const comm::Strategy* strategy : {&comm::two_sided(), &comm::fused()}) {
      RankOptions o = options_of(whole.impl(), strategy);
      o.finalize = {&calls, [](void* self, const DispatchedRows& rows) {
                      sum_rows(self, rows, Dtype::kBf16);
                    }};
      Part part(g, whole.impl(), o);
      Call call(whole.impl(), 7, 60 + std::uint64_t(g.rank()));
      const test::GivenRouting routing(p, 7);
      std::vector<float> rows = test::fp32_rows(call, routing);
      for (float& v : rows) v = bf16_to_float(float_to_bf16(v));
      const std::size_t h = std::size_t(p.hidden), k = std::size_t(p.top_k());
      Bytes want(call.out.size()), wire(std::size_t(p.hidden) * 4 + 16);
      for (std::size_t t = 0; t < 7; ++t) {
        std::vector<float> sum(h);
        for (int r = 0; r < 2; ++r) {
          const Shard held = part.layer.held_by(r);
          std::vector<float> share(h);
          bool any = false;
          for (std::size_t i = t * k; i < (t + 1) * k; ++i) {
            const std::int64_t local = routing.ids[i] - held.begin;
            if (routing.ids[i] < 0 || local < 0 || local >= held.size) continue;
            any = true;
            for (std::size_t c = 0; c < h; ++c) share[c] += routing.weights[i] * rows[i * h + c];
          }
          if (!any) continue;
          comm::encode_row(part.layer.wire(), share.data(), p.hidden, wire.data());
          comm::add_row(part.layer.wire(), wire.data(), 1, p.hidden, sum.data());
        }
        for (std::size_t c = 0; c < h; ++c)
          store_element(Dtype::kBf16, want.data(), std::int64_t(t * h + c),
                        sum[c] * p.routed_scaling_factor);
      }
      const Bytes got = part.run(call, routing);
      EXPECT_TRUE(test::same_bits(got, want)) << strategy->name;
      o.finalize = {};
      Part own(g, whole.impl(), o);
      EXPECT_FALSE(test::same_bits(own.run(call, routing), want)) << "the control: rows unrounded";
    }
    RankOptions o = options_of(whole.impl(), &comm::expert_major());
    o.finalize = {&calls, [](void*, const DispatchedRows&) {}};
    EXPECT_THAT(test::usage_error_of([&] { Part(g, whole.impl(), o); }),
                HasSubstr("expert_major has not weighed the rows"));
  }));
  EXPECT_GE(calls, 4);
}

// A new expert in place: the bits of a layer that was built with it, in every mode.
TEST_P(Schedules, AnUpdateGivesTheBitsOfALayerBuiltWithIt) {
  const MoeLayer whole = build(base());
  struct Mode {
    Parallel parallel;
    std::int64_t tp;
    const comm::Strategy* strategy;
  };
  for (const Mode& m : {Mode{Parallel::kDep, 1, &comm::fused()}, Mode{Parallel::kTep, 1, nullptr},
                        Mode{Parallel::kDtp, 2, &comm::all_gather()}})
    expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) {
      RankOptions o = options_of(whole.impl(), m.strategy);
      o.parallel = m.parallel;
      o.tp = m.tp;
      const checkpoint::LayerWeights weights = test::with_declared_scales(whole.impl());
      checkpoint::LayerWeights changed = weights;
      changed.expert = [inner = weights.expert](std::int64_t e) { return inner(e == 4 ? 1 : e); };
      Part live(g, weights, o), built(g, changed, o);
      const std::int64_t tokens = m.parallel == Parallel::kTep ? 7 : 5 + 2 * g.rank();
      const std::uint64_t seed = m.parallel == Parallel::kTep ? 70 : 70 + std::uint64_t(g.rank());
      Call call(whole.impl(), tokens, seed);
      const test::GivenRouting routing(whole.problem(), tokens);
      const Bytes before = live.run(call, routing), want = built.run(call, routing);
      live.layer.update_expert(4, weights.expert(1));
      EXPECT_TRUE(test::same_bits(live.run(call, routing), want)) << to_string(m.parallel);
      EXPECT_FALSE(test::same_bits(before, want)) << "the control: the update shows";
      EXPECT_THAT(test::usage_error_of([&] { live.layer.update_expert(6, weights.expert(1)); }),
                  HasSubstr("expert 6 is outside 0..5"));
      EXPECT_THAT(
          test::usage_error_of([&] { live.layer.update_expert(g.rank(), weights.expert(1)); }),
          HasSubstr("the expert"));
      EXPECT_TRUE(test::same_bits(live.run(call, routing), want))
          << "refused updates change nothing";
    }));
}

TEST_P(Schedules, AForwardAllocatesNothing) {
  if (leaf().id.quant != "none" && leaf().id.quant != "nvfp4" && !test::is_soak())
    GTEST_SKIP() << "two formats in a change's tests";
  const MoeLayer whole = build(base());
  constexpr int kRanks = 2;
  struct Mode {
    Parallel parallel;
    const comm::Strategy* strategy;
  };
  std::vector<Mode> modes = {{Parallel::kTep, nullptr}, {Parallel::kDtp, &comm::all_gather()}};
  for (const comm::Strategy* s : kStrategies) modes.push_back({Parallel::kDep, s});
  for (const Mode& m : modes) {
    std::barrier together(kRanks);
    std::int64_t allocations = -1;
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      RankOptions o = options_of(whole.impl(), m.strategy);
      o.parallel = m.parallel;
      o.tp = m.parallel == Parallel::kDtp ? kRanks : 1;
      o.balanced = true;
      Part part(g, whole.impl(), o);
      Call call(whole.impl(), kCapacity, m.parallel == Parallel::kTep ? 1 : 5 + g.rank());
      const test::GivenRouting routing(whole.problem(), kCapacity);
      part.run(call, routing);
      const ForwardArgs args = part.args(call, routing);
      together.arrive_and_wait();
      const std::int64_t before = test::allocation_count();
      together.arrive_and_wait();
      for (int i = 0; i < 3; ++i) part.layer.forward(args);
      together.arrive_and_wait();
      if (g.rank() == 0) allocations = test::allocation_count() - before;
      together.arrive_and_wait();
    }));
    EXPECT_EQ(allocations, 0) << to_string(m.parallel) << " "
                              << (m.strategy == nullptr ? "" : m.strategy->name);
  }
}

// A rank that never comes into the fused call: its peer names it within the deadline.
TEST(FusedFault, ARankThatStaysAwayIsNamedAndAGoodCallFollows) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  const MoeLayer whole = test::build_layer(test::make_weights(test::small_problem(leaf), leaf), {},
                                           test::runnable_tiers().back());
  auto call_with = [&](Group& g, bool away, std::int64_t tokens) {
    Part part(g, whole.impl(), options_of(whole.impl(), &comm::fused()));
    Call call(whole.impl(), tokens, 1);
    const test::GivenRouting routing(whole.problem(), tokens);
    part.run(call, routing);
    g.barrier("the first call has ended");
    if (away) return test::play_dead(g);
    part.run(call, routing);
  };
  test::Outcomes out =
      on_thread_ranks(3, test::short_serving(), [&](Group& g) { call_with(g, g.rank() == 1, 4); });
  for (std::size_t r : {0U, 2U}) {
    const std::string text = test::text_of<comm::PeerError>(out[r]);
    EXPECT_TRUE(text.find("rank 1") != std::string::npos ||
                text.find("gave up") != std::string::npos)
        << text;
  }
  EXPECT_THAT(test::text_of<comm::PeerError>(out[0]) + test::text_of<comm::PeerError>(out[2]),
              HasSubstr("rank 1"));
  out = on_thread_ranks(2, long_deadlines(),
                        [&](Group& g) { call_with(g, false, kCapacity + g.rank()); });
  EXPECT_THAT(test::text_of<UsageError>(out[1]), HasSubstr("exceeds the capacity 9"));
  expect_all_well(on_thread_ranks(2, long_deadlines(), [&](Group& g) { call_with(g, false, 9); }));
}

INSTANTIATE_TEST_SUITE_P(Leaves, Schedules, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
