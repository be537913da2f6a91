// SPDX-License-Identifier: Apache-2.0
// A live layer whose experts migrate between the ranks' slots while it serves a shifting load: the
// bits of a layer that never moves one, where the combine sums in choice order.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/base/random.h"
#include "switchyard/eplb/balancer.h"
#include "switchyard/layer/expert_updates.h"
#include "switchyard/layer/rank_judge.h"
#include "tests/cases/leaf_case.h"
#include "tests/cases/share_case.h"
#include "tests/comm/thread_ranks.h"
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
using test::text_of;
using testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::int64_t kTokens = 12, kExperts = 6, kSlots = 8;

std::vector<std::int32_t> first_slots() {
  return eplb::linear_placement({kExperts, kSlots, kRanks}, 1).layers[0];
}

RankOptions options_of(const layer::Layer& whole, const comm::Strategy& strategy) {
  RankOptions o;
  o.layer = whole.options();
  o.layer.pool = std::make_shared<ThreadPool>(1);
  o.strategy = &strategy;
  o.capacity = kTokens;
  return o;
}

RankOptions balanced(RankOptions o) {
  o.balanced = true;
  o.slot_experts = first_slots();
  return o;
}

/// Distinct ids by a zipf law whose favourite wanders, weights of the token's own, some skipped.
test::GivenRouting zipf_routing(const Problem& p, std::int64_t step, int rank) {
  test::GivenRouting out(p, kTokens);
  const Random random(std::uint64_t(step) + 1, std::uint64_t(rank));
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<std::pair<float, std::int32_t>> drawn;
    for (std::int32_t e = 0; e < kExperts; ++e) {
      const std::int64_t place = (e + step / 20) % kExperts;
      const float u = std::max(random.uniform(std::uint64_t(t * kExperts + e)), 0x1p-20f);
      drawn.emplace_back(std::log(u) * float(1 + 2 * place), e);
    }
    std::sort(drawn.rbegin(), drawn.rend());
    for (std::int64_t j = 0; j < p.top_k(); ++j)
      out.ids[std::size_t(t * p.top_k() + j)] = drawn[std::size_t(j)].second;
  }
  out.ids[std::size_t(step % kTokens * p.top_k())] = -1;
  return out;
}

/// One rank's layer with what a call of it needs.
struct Served {
  Served(Group& g, const layer::Layer& whole, const RankOptions& o)
      : layer(g, test::with_declared_scales(whole), o), workspace(layer.workspace_bytes()) {}

  std::vector<std::byte> run(Call& call, const test::GivenRouting& routing) {
    std::ranges::fill(workspace.bytes(), std::byte{0xc5});
    std::ranges::fill(call.out, std::byte{0xff});
    ForwardArgs args = call.args();
    args.routing = {.ids = routing.ids.data(), .weights = routing.weights.data()};
    args.workspace = workspace.bytes();
    layer.forward(args);
    return call.out;
  }

  RankLayer layer;
  HostBuffer workspace;
};

std::vector<double> numbers(Dtype dtype, const std::vector<std::byte>& bytes) {
  std::vector<double> out;
  for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i)
    out.push_back(double(load_element(dtype, bytes.data(), std::int64_t(i))));
  return out;
}

/// What all ranks chose, by expert.
std::vector<std::int64_t> choices_of_all(const Problem& p, std::int64_t step) {
  std::vector<std::int64_t> out(kExperts);
  for (int r = 0; r < kRanks; ++r)
    for (std::int32_t id : zipf_routing(p, step, r).ids)
      if (id >= 0) ++out[std::size_t(id)];
  return out;
}

class Balanced : public EveryLeaf {
 protected:
  /// Serves `steps` calls with and without balancing; `compare` is given both outputs of a call.
  template <class Compare>
  std::int64_t serve(const comm::Strategy& strategy, std::int64_t steps, Compare&& compare) {
    const MoeLayer whole = build(base());
    EXPECT_EQ(whole.impl().problem().num_experts(), kExperts);
    std::atomic<std::int64_t> migrations = 0;
    expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
      const RankOptions o = options_of(whole.impl(), strategy);
      Served fixed(g, whole.impl(), o), moved(g, whole.impl(), balanced(o));
      eplb::Balancer balancer({kExperts, kSlots, kRanks, {first_slots()}},
                              {.window = 4, .warm_up = 4, .interval = 4});
      for (std::int64_t step = 0; step < steps; ++step) {
        Call call(whole.impl(), kTokens, 500 + std::uint64_t(step * kRanks + g.rank()));
        const auto routing = zipf_routing(whole.impl().problem(), step, g.rank());
        const auto want = fixed.run(call, routing), got = moved.run(call, routing);
        compare(whole.impl(), want, got, step);
        const std::vector<std::int64_t> counts = moved.layer.take_counts();
        EXPECT_EQ(counts, choices_of_all(whole.impl().problem(), step)) << "step " << step;
        balancer.add(0, counts);
        for (const eplb::Migration& m : balancer.end_iteration()) {
          moved.layer.migrate(m.slots);
          balancer.applied(m);
        }
        EXPECT_TRUE(
            std::ranges::equal(moved.layer.slots().experts(), balancer.placement().layers[0]));
      }
      if (g.rank() == 0) migrations = balancer.migrations();
    }));
    return migrations;
  }
};

TEST_P(Balanced, ExpertMajorKeepsEveryBitOverTwoHundredSteps) {
  const std::int64_t steps = leaf().id.quant == "none" || test::is_soak() ? 200 : 48;
  const std::int64_t migrations =
      serve(comm::expert_major(), steps,
            [](const layer::Layer&, const auto& want, const auto& got, std::int64_t step) {
              EXPECT_TRUE(test::same_bits(want, got)) << "step " << step;
            });
  EXPECT_GE(migrations, steps / 20);
}

TEST_P(Balanced, SharesAreRoundedElsewhereAndNoFurther) {
  // A share is rounded where its rank's choices end, at 2^-9 relative in bf16 and 2^-12 in fp16.
  constexpr double kRoundings = 0x1p-7;
  const std::int64_t steps = leaf().id.quant == "none" || test::is_soak() ? 200 : 24;
  for (const comm::Strategy* strategy : {&comm::one_sided(), &comm::two_sided(), &comm::compact(),
                                         &comm::all_gather(), &comm::fused()}) {
    double worst = 0;
    std::mutex lock;
    const std::int64_t migrations =
        serve(*strategy, steps,
              [&](const layer::Layer& whole, const auto& want, const auto& got, std::int64_t) {
                const Dtype dtype = whole.options().dtype;
                const std::lock_guard one(lock);
                worst = std::max(worst, test::rel(numbers(dtype, got), numbers(dtype, want)));
              });
    EXPECT_LT(worst, kRoundings) << strategy->name;
    EXPECT_GT(worst, 0) << "the control: other ranks' sums are rounded elsewhere";
    EXPECT_GE(migrations, steps / 24) << strategy->name;
  }
}

TEST_P(Balanced, AnUpdateFollowsItsExpertAndAMovedLayerIsJudged) {
  const MoeLayer whole = build(base());
  expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
    const RankOptions o = options_of(whole.impl(), comm::expert_major());
    Served fixed(g, whole.impl(), o), moved(g, whole.impl(), balanced(o));
    const test::GivenRouting routing = zipf_routing(whole.impl().problem(), 3, g.rank());
    Call call(whole.impl(), kTokens, 90 + std::uint64_t(g.rank()));
    const auto before = fixed.run(call, routing);
    EXPECT_TRUE(test::same_bits(before, moved.run(call, routing)));
    // Expert 5, which serves slot 5 alone, becomes expert 1; then it moves to the other rank.
    checkpoint::ExpertWeights fresh = test::with_declared_scales(whole.impl()).expert(1);
    fixed.layer.update_expert(5, fresh);
    moved.layer.update_expert(5, fresh);
    moved.layer.migrate(std::vector<std::int32_t>{5, 1, 2, 3, 0, 4, 1, 2});
    const auto want = fixed.run(call, routing);
    EXPECT_FALSE(test::same_bits(before, want)) << "the control: the update shows";
    EXPECT_TRUE(test::same_bits(want, moved.run(call, routing)));
    const layer::Judgement j = judge_ranks(moved.layer, {kTokens, call.exact.data(), nullptr, {}});
    EXPECT_TRUE(j.ok(budgets_of(moved.layer))) << j.rel_l2_oracle;
  }));
}

TEST_P(Balanced, ARefusedMigrationChangesNothing) {
  const MoeLayer whole = build(base());
  expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
    const RankOptions o = options_of(whole.impl(), comm::expert_major());
    Served fixed(g, whole.impl(), o), moved(g, whole.impl(), balanced(o));
    const test::GivenRouting routing = zipf_routing(whole.impl().problem(), 3, g.rank());
    Call call(whole.impl(), kTokens, 90 + std::uint64_t(g.rank()));
    const auto want = moved.run(call, routing);
    using Slots = std::vector<std::int32_t>;
    EXPECT_THAT(test::usage_error_of([&] {
                  moved.layer.migrate(Slots{0, 1, 2, 3});
                }),
                HasSubstr("8 slots are to become 4"));
    EXPECT_THAT(test::usage_error_of([&] {
                  moved.layer.migrate(Slots{0, 1, 2, 3, 0, 4, 1, 2});
                }),
                HasSubstr("expert 5 has no slot"));
    EXPECT_THAT(test::usage_error_of([&] { fixed.layer.migrate(first_slots()); }),
                HasSubstr("not built to be balanced"));
    EXPECT_THAT(test::usage_error_of([&] { fixed.layer.take_counts(); }),
                HasSubstr("not built to be balanced"));
    Slots unlike = first_slots();
    if (g.rank() == 1) std::swap(unlike[0], unlike[1]);
    EXPECT_THAT(test::usage_error_of([&] { moved.layer.migrate(unlike); }),
                HasSubstr("the slots to come"));
    EXPECT_TRUE(test::same_bits(want, moved.run(call, routing)));
    EXPECT_TRUE(std::ranges::equal(moved.layer.slots().experts(), first_slots()));
  }));
}

// What an update keeps, on every rank since it may migrate, and what a migration holds meanwhile
// count against the memory that the packed experts may fill.
TEST(BalancedMemory, UpdatesAndMigrationsStayWithinTheLimit) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  const MoeLayer whole = test::build_layer(test::make_weights(test::small_problem(leaf), leaf), {},
                                           test::runnable_tiers().back());
  const checkpoint::LayerWeights weights = test::with_declared_scales(whole.impl());
  const std::int64_t one = layer::bytes_of(weights.expert(1));
  expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) {
    RankOptions o = balanced(options_of(whole.impl(), comm::expert_major()));
    const std::int64_t packed = RankLayer(g, weights, o).part().packed_bytes();
    auto with_room = [&](std::int64_t bytes) {
      o.layer.memory_bytes = (packed + bytes) / 9 * 10 + 10;
      return std::make_unique<Served>(g, whole.impl(), o);
    };
    const auto refused = [&](auto&& change) {
      EXPECT_THAT(test::usage_error_of(change), HasSubstr("may be used; build the layer anew"));
    };
    const test::GivenRouting routing = zipf_routing(whole.impl().problem(), 3, g.rank());
    Call call(whole.impl(), kTokens, 90 + std::uint64_t(g.rank()));
    const auto updated = with_room(one + one / 2);
    updated->layer.update_expert(4, weights.expert(1));
    const auto good = updated->run(call, routing);
    // Expert 4 stands on rank 1 alone; rank 0 keeps it too, and has no room for a second one.
    refused([&] { updated->layer.update_expert(0, weights.expert(1)); });
    EXPECT_TRUE(test::same_bits(good, updated->run(call, routing)));
    updated->layer.update_expert(4, weights.expert(2));  // takes the place of the one before
    EXPECT_FALSE(test::same_bits(good, updated->run(call, routing)));

    const std::vector<std::int32_t> to = {5, 1, 2, 3, 0, 4, 1, 2};
    const auto still = with_room(std::int64_t(whole.impl().routed().layout.bytes) / 2);
    refused([&] { still->layer.migrate(to); });
    EXPECT_TRUE(std::ranges::equal(still->layer.slots().experts(), first_slots()));
    const auto moves = with_room(6 * std::int64_t(whole.impl().routed().layout.bytes));
    moves->layer.migrate(to);
    EXPECT_TRUE(std::ranges::equal(moves->layer.slots().experts(), to));
  }));
}

// Where shares are rounded follows from where experts stand, and from nothing else: a layer that
// moved there has the bits of one that was built there, in every mode and behind cut experts.
TEST_P(Balanced, AMovedLayerIsTheOneThatIsBuiltThere) {
  struct Mode {
    Parallel parallel;
    std::int64_t tp;
    const comm::Strategy* strategy;
  };
  const std::vector<std::int32_t> to = {5, 1, 2, 3, 0, 4, 1, 2};
  const MoeLayer whole = build(base());
  for (const Mode& m :
       {Mode{Parallel::kDep, 1, &comm::two_sided()}, Mode{Parallel::kDep, 1, &comm::fused()},
        Mode{Parallel::kTep, 1, nullptr}, Mode{Parallel::kDtp, 2, &comm::all_gather()},
        Mode{Parallel::kDep, 2, &comm::all_gather()}})
    expect_all_well(on_thread_ranks(int(kRanks * m.tp), long_deadlines(), [&](Group& g) {
      RankOptions o =
          options_of(whole.impl(), m.strategy != nullptr ? *m.strategy : comm::one_sided());
      o.parallel = m.parallel;
      o.tp = m.tp;
      o.strategy = m.strategy;
      const int own = m.parallel == Parallel::kTep ? 0 : g.rank();
      const test::GivenRouting routing = zipf_routing(whole.impl().problem(), 3, own);
      Call call(whole.impl(), kTokens, 90 + std::uint64_t(own));
      Served moved(g, whole.impl(), balanced(o));
      o.slot_experts = to;
      Served built(g, whole.impl(), o);
      moved.run(call, routing);
      const std::vector<std::int64_t> counts = moved.layer.take_counts();
      moved.layer.migrate(to);
      EXPECT_TRUE(test::same_bits(moved.run(call, routing), built.run(call, routing)))
          << to_string(m.parallel) << " tp " << m.tp << " rank " << g.rank();
      EXPECT_EQ(moved.layer.take_counts(), counts) << "counted by expert, wherever it stands";
      EXPECT_TRUE(std::ranges::equal(moved.layer.slots().experts(), to));
    }));
}

// A rank that dies while experts travel is named within the deadline; a new group serves.
TEST(MigrationFault, ARankThatDiesWhileExpertsTravelIsNamed) {
  const leaves::Leaf& leaf = *leaves::find_leaf("none", Device::kCpu).leaf;
  const MoeLayer whole = test::build_layer(test::make_weights(test::small_problem(leaf), leaf), {},
                                           test::runnable_tiers().back());
  auto migrate = [&](Group& g, bool dies) {
    Served moved(g, whole.impl(), balanced(options_of(whole.impl(), comm::one_sided())));
    g.barrier("built");
    if (dies) return test::play_dead(g);
    moved.layer.migrate(std::vector<std::int32_t>{5, 1, 2, 3, 0, 4, 1, 2});
  };
  const test::Outcomes out = on_thread_ranks(kRanks, test::short_deadlines(),
                                             [&](Group& g) { migrate(g, g.rank() == 1); });
  const std::string text = text_of<comm::PeerError>(out[0]);
  EXPECT_THAT(text, HasSubstr("rank 1"));
  EXPECT_THAT(text, HasSubstr("migration of experts"));
  expect_all_well(on_thread_ranks(kRanks, long_deadlines(), [&](Group& g) { migrate(g, false); }));
}

INSTANTIATE_TEST_SUITE_P(Leaves, Balanced, test::every_cpu_leaf(), test::leaf_name);

}  // namespace
}  // namespace switchyard
