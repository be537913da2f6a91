// SPDX-License-Identifier: Apache-2.0
// The routers compiled for one class of recipes: which recipe has one, and, run by threads in place
// of a warp's lanes, the bits of the CPU twin.
#include "switchyard/ops/route/route_held.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/held_recipes.h"
#include "tests/support/route_case.h"
#include "tests/support/warp_threads.h"

namespace switchyard::ops {
namespace {

using test::RouteCase;
using test::Routed;
using test::WarpThreads;
using Method = RoutingMethodType;

constexpr RouterKind kChosen = RouterKind::kSoftmaxOverChosen, kAll = RouterKind::kSoftmax,
                     kSigmoid = RouterKind::kSigmoid, kGroups = RouterKind::kSigmoidGroups;

/// What a launch does for the case's tokens.
template <RouterKind kind, int held>
void route_rows(RouteCase& c) {
  const held::HeldSpec spec = held::HeldSpec::of(c.spec);
  std::vector<float> memory(std::size_t(65 * held), NAN);
  const held::HeldScores<float> s{memory.data(), &memory[32 * held], &memory[64 * held]};
  const float* bias = c.spec.choice_bias ? c.bias.data() : nullptr;
  WarpThreads::run([&] {
    for (std::int64_t t = 0; t < c.rows; ++t) {
      const float* logits = c.logits.data() + t * c.stride;
      if constexpr (held::scores_first(kind))
        for (int first = 0; first < spec.num_ids; first += 32)
          held::score_ids<kind, WarpThreads>(spec, logits, bias, first, s);
      WarpThreads::sync();
      const held::HeldChoice mine =
          held::route<kind, held, WarpThreads>(spec, logits, {s.score, s.choice, s.group});
      if (WarpThreads::lane() < spec.top_k) {
        const std::size_t at = std::size_t(t * spec.top_k + WarpThreads::lane());
        c.got.ids[at] = mine.id;
        c.got.weights[at] = mine.weight;
      }
      WarpThreads::sync();
    }
  });
}

template <RouterKind kind>
void route_rows(RouteCase& c, int held) {
  if (held == 4) return route_rows<kind, 4>(c);
  if (held == 8) return route_rows<kind, 8>(c);
  route_rows<kind, 16>(c);
}

Routed run_held(RouteCase& c) {
  const RouterChoice router = compiled_router(c.spec);
  return c.run([&](const RouteArgs&) {
    if (router.kind == kChosen) return route_rows<kChosen>(c, router.held);
    if (router.kind == kAll) return route_rows<kAll>(c, router.held);
    if (router.kind == kSigmoid) return route_rows<kSigmoid>(c, router.held);
    route_rows<kGroups>(c, router.held);
  });
}

void expect_bits_of_the_cpu_twin(RouteCase& c) {
  SCOPED_TRACE(describe(c.spec));
  ASSERT_NE(compiled_router(c.spec).kind, RouterKind::kGeneral);
  const Routed cpu = c.run_cpu(), held = run_held(c);
  EXPECT_EQ(held.ids, cpu.ids);
  for (std::size_t i = 0; i < cpu.weights.size(); ++i)
    ASSERT_EQ(bits_of(held.weights[i]), bits_of(cpu.weights[i])) << "choice " << i;
}

/// Some of the recipes, of all classes, sizes and k: a choice takes hundreds of meetings of 32
/// threads.
std::vector<RoutingSpec> some_recipes() {
  std::vector<RoutingSpec> out;
  const std::vector<RoutingSpec> all = test::held_recipes();
  for (std::size_t i = 0; i < all.size(); i += 4) out.push_back(all[i]);
  return out;
}

TEST(RouteHeld, GivesTheBitsOfTheCpuTwin) {
  for (const RoutingSpec& spec : some_recipes()) {
    RouteCase c(spec, 2, unsigned(spec.num_experts + 7 * spec.top_k));
    expect_bits_of_the_cpu_twin(c);
  }
}

TEST(RouteHeld, SpecialLogitsAndTies) {
  for (const RoutingSpec& spec : some_recipes()) {
    if (spec.num_experts != 33 && spec.num_experts != 256) continue;
    RouteCase c(spec, test::kSpecialRows, 3);
    test::set_special_rows(c);
    expect_bits_of_the_cpu_twin(c);
  }
}

TEST(RouteHeld, AnotherLogitChangesAChoice) {  // the control of both
  RouteCase c(make_routing(Method::kDeepSeekV3, 160, 8), 1, 3);
  const Routed before = run_held(c);
  c.logits[std::size_t(before.ids[0])] = -3;
  EXPECT_NE(run_held(c).ids, before.ids);
}

RouterChoice choice_of(RoutingSpec spec, std::int64_t groups = 1, std::int64_t zero = 0) {
  spec.n_group = groups;
  spec.zero_experts = zero;
  return compiled_router(spec);
}

TEST(RouterChoiceOf, EveryClassHasItsRouter) {
  using Choice = RouterChoice;
  EXPECT_EQ(choice_of(make_routing(Method::kRenormalize, 128, 8)), (Choice{kChosen, 4}));
  EXPECT_EQ(choice_of(make_routing(Method::kRenormalizeNaive, 129, 8)), (Choice{kChosen, 8}));
  EXPECT_EQ(choice_of(make_routing(Method::kRenormalize, 32, 4)), (Choice{kChosen, 4}));
  EXPECT_EQ(choice_of(make_routing(Method::kDefault, 64, 8), 1, 65), (Choice{kAll, 8}));
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV3, 384, 8)), (Choice{kSigmoid, 16}));
  EXPECT_EQ(choice_of(make_routing(Method::kMiniMax2, 256, 8)), (Choice{kSigmoid, 8}));
  EXPECT_EQ(choice_of(make_routing(Method::kSigmoidRenorm, 160, 8)), (Choice{kSigmoid, 8}));
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV3, 256, 8), 8), (Choice{kGroups, 8}));
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV3, 64, 8), 2), (Choice{kGroups, 8}));
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV3, 512, 8), 16), (Choice{kGroups, 16}));
}

TEST(RouterChoiceOf, TheRestIsTheGeneralOnes) {
  const RouterChoice general;
  for (Method m :
       {Method::kLlama4, Method::kTopK, Method::kTopKSigmoid, Method::kDeepSeekV4, Method::kHash,
        Method::kSparseMixer, Method::kSoftmaxBias, Method::kLpNorm, Method::kUnspecified})
    EXPECT_EQ(choice_of(make_routing(m, 64, 2)), general) << to_string(m);
  EXPECT_EQ(choice_of(make_routing(Method::kRenormalize, 513, 8)), general);
  EXPECT_EQ(choice_of(make_routing(Method::kRenormalize, 512, 8), 1, 1), general);
  EXPECT_EQ(choice_of(make_routing(Method::kRenormalize, 128, 8), 4), general);
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV2, 160, 6), 8), general);
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV3, 256, 8), 4), general) << "groups of 64";
  EXPECT_EQ(choice_of(make_routing(Method::kDeepSeekV3, 256, 8), 8, 2), general);
  RoutingSpec most = make_routing(Method::kDeepSeekV3, 256, 8);
  most.group_statistic = GroupStatistic::kMax;
  EXPECT_EQ(choice_of(most, 8), general);
  RoutingSpec scaled = make_routing(Method::kRenormalize, 128, 8);
  scaled.per_expert_scale = true;
  EXPECT_EQ(choice_of(scaled), general);
}

TEST(RouterChoiceOf, AWishGoesBeforeTheCallsOwnChoice) {
  const RoutingSpec spec = make_routing(Method::kRenormalize, 128, 8);
  const RouterChoice compiled{kChosen, 4}, general;
  EXPECT_EQ(choose_router(spec, kMostCompiledTokens, RouterWish::kOwn), compiled);
  EXPECT_EQ(choose_router(spec, kMostCompiledTokens + 1, RouterWish::kOwn), general);
  EXPECT_EQ(choose_router(spec, 1, RouterWish::kGeneral), general);
  EXPECT_EQ(choose_router(spec, 4096, RouterWish::kCompiled), compiled);
}

}  // namespace
}  // namespace switchyard::ops
