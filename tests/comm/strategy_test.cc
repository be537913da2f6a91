// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/comm/factory.h"
#include "switchyard/comm/reduction.h"
#include "switchyard/core/preset.h"
#include "switchyard/resolve/switches.h"

namespace switchyard::comm {
namespace {

using testing::HasSubstr;

Problem tiny() { return make_preset("tiny"); }  // 8 experts, hidden 128

Deployment dep(std::int64_t ep) {
  Deployment d;
  d.ep = ep;
  d.parallel = Parallel::kDep;
  return d;
}

std::vector<std::string> verdicts_of(const Choice& c) {
  std::vector<std::string> out;
  for (const Verdict& v : c.verdicts)
    out.push_back(cat(v.strategy->name, " ",
                      v.eligibility.eligible() ? "ok" : to_string(v.eligibility.reason())));
  return out;
}

TEST(Factory, AutoOrderAndEveryReason) {
  Choice c = choose(tiny(), dep(4), "auto");
  ASSERT_TRUE(c.strategy);
  EXPECT_EQ(c.strategy->name, "one_sided");
  EXPECT_THAT(verdicts_of(c),
              testing::ElementsAre("one_sided ok", "two_sided ok", "nccl dep_missing", "compact ok",
                                   "expert_major ok", "all_gather ok", "fused path_not_enabled"));
  for (const Verdict& v : c.verdicts)
    if (!v.eligibility.eligible()) {
      EXPECT_FALSE(v.eligibility.detail().empty());
    }
}

TEST(Factory, NoneIsNeededForOneRankOrAttentionTp) {
  Deployment tep = dep(4), ttp = dep(4);
  tep.parallel = Parallel::kTep;
  ttp.parallel = Parallel::kTtp;
  for (const Deployment& d : {dep(1), tep, ttp}) {
    Choice c = choose(tiny(), d, "auto");
    EXPECT_FALSE(c.needed);
    EXPECT_FALSE(c.strategy);
    EXPECT_TRUE(c.verdicts.empty());
  }
}

TEST(Factory, APinIsJudgedAloneAndNeverReplaced) {
  for (const Strategy* s : strategies()) {
    Choice c = choose(tiny(), dep(4), s->name);
    ASSERT_EQ(c.verdicts.size(), 1U);
    EXPECT_EQ(c.verdicts[0].strategy, s);
    EXPECT_EQ(c.strategy != nullptr, c.verdicts[0].eligibility.eligible());
    EXPECT_EQ(c.strategy != nullptr, s->make != nullptr || s == &fused()) << s->name;
  }
  // Outside dep a pin is still a pin: refused with the reason.
  for (Parallel parallel : {Parallel::kDtp, Parallel::kTep, Parallel::kTtp}) {
    Deployment d = dep(1);
    d.tp = 4;
    d.parallel = parallel;
    Choice c = choose(tiny(), d, "two_sided");
    EXPECT_TRUE(c.needed);
    EXPECT_FALSE(c.strategy);
    EXPECT_EQ(c.verdicts[0].eligibility.reason(), Reject::kTopologyUnsupported);
    EXPECT_THAT(c.verdicts[0].eligibility.detail(),
                HasSubstr(cat("parallel is ", to_string(parallel))));
  }
  EXPECT_THROW(choose(tiny(), dep(4), "pigeons"), UsageError);
}

TEST(Factory, CutExpertsLeaveAllGatherOnly) {
  Deployment d = dep(2);
  d.tp = 2;
  Choice c = choose(tiny(), d, "auto");
  ASSERT_TRUE(c.strategy);
  EXPECT_EQ(c.strategy->name, "all_gather");
  EXPECT_THAT(c.verdicts[0].eligibility.detail(), HasSubstr("ep = 2 and tp = 2 are both above 1"));
  d.parallel = Parallel::kDtp;
  EXPECT_EQ(choose(tiny(), d, "auto").strategy, &all_gather());
}

TEST(Factory, UnevenExpertsAndReplicatedSlots) {
  EXPECT_EQ(choose(tiny(), dep(3), "auto").strategy, &one_sided());  // 3 + 3 + 2 experts
  Deployment d = dep(2);
  d.slots = 10;
  EXPECT_EQ(choose(tiny(), d, "auto").strategy, &one_sided());
  EXPECT_EQ(choose(tiny(), d, "two_sided").strategy, &two_sided());  // no rule of fours
  d.ep = 4;
  Choice c = choose(tiny(), d, "auto");
  EXPECT_FALSE(c.strategy);
  EXPECT_EQ(c.verdicts[0].eligibility.reason(), Reject::kSlotsNotDivisibleByEp);
  EXPECT_THAT(c.verdicts[0].eligibility.detail(), HasSubstr("slots = 10 do not divide by ep = 4"));
  EXPECT_EQ(choose(tiny(), dep(9), "one_sided").verdicts[0].eligibility.reason(),
            Reject::kTopologyUnsupported);
}

TEST(Factory, AMaskedStrategyIsSkipped) {
  static constexpr Strategy kMasked{
      .name = "one_sided", .can_implement = [](const Problem&, const Deployment&) {
        return Eligibility::no(Reject::kTopologyUnsupported, "masked by the test");
      }};
  const Strategy* const table[] = {&kMasked, &two_sided(), &all_gather()};
  Deployment d = dep(2);
  d.slots = 10;
  Choice c = choose(tiny(), d, "auto", table);
  EXPECT_EQ(c.strategy, &two_sided());
  EXPECT_EQ(c.verdicts[0].eligibility.detail(), "masked by the test");
  EXPECT_FALSE(choose(tiny(), d, "one_sided", table).strategy);
}

TEST(Factory, LimitsAreJudgedAtLimitAndBeyond) {
  Problem wide = make_preset("deepseek-v3");  // 256 experts
  EXPECT_EQ(choose(wide, dep(kMaxGroupRanks), "auto").strategy, &one_sided());
  Deployment d = dep(kMaxGroupRanks + 1);
  d.slots = 2 * (kMaxGroupRanks + 1);
  Choice c = choose(wide, d, "all_gather");
  EXPECT_FALSE(c.strategy);
  EXPECT_THAT(c.verdicts[0].eligibility.detail(), HasSubstr("ranks = 257 exceed the 256"));
  Problem odd = tiny();
  odd.hidden = 127;
  odd.combine = CombinePrecision::kNvfp4;
  EXPECT_EQ(choose(odd, dep(2), "one_sided").verdicts[0].eligibility.reason(),
            Reject::kShapeUnaligned);
  odd.hidden = 126;
  EXPECT_EQ(choose(odd, dep(2), "auto").strategy, &one_sided());
}

TEST(Factory, WeightOnInputIsNotWeighedInTheCombine) {
  Problem p = make_preset("llama4-maverick");
  ASSERT_EQ(p.routing.placement, WeightPlacement::kInput);
  for (const Strategy* s : strategies()) {
    if (s->make == nullptr) continue;
    const Choice c = choose(p, dep(4), s->name);
    EXPECT_EQ(c.strategy != nullptr, s->contract.weights == WeightsBy::kExperts) << s->name;
    if (c.strategy != nullptr) continue;
    EXPECT_EQ(c.verdicts[0].eligibility.reason(), Reject::kRoutingUnsupported);
    EXPECT_THAT(c.verdicts[0].eligibility.detail(), HasSubstr("on the experts' input"));
  }
  EXPECT_EQ(choose(p, dep(4), "auto").strategy, &one_sided());
  p.routing.placement = WeightPlacement::kOutput;
  EXPECT_EQ(choose(p, dep(4), "expert_major").strategy, &expert_major());
}

TEST(Factory, GpusExchangeNoTokens) {
  Deployment d = dep(2);
  d.device = Device::kCuda;
  for (const Parallel p : {Parallel::kDep, Parallel::kDtp}) {
    d.parallel = p;
    const Choice c = choose(tiny(), d, "all_gather");
    EXPECT_EQ(c.verdicts[0].eligibility.reason(), Reject::kPathNotEnabled);
    EXPECT_THAT(c.verdicts[0].eligibility.detail(),
                HasSubstr(cat("parallel is ", to_string(p), " on cuda")));
    EXPECT_THAT(c.verdicts[0].eligibility.detail(), HasSubstr("ask for tep or ttp"));
  }
  d.parallel = Parallel::kDep;
  EXPECT_EQ(choose(tiny(), d, "one_sided").verdicts[0].eligibility.reason(),
            Reject::kPathNotEnabled);
  d.env.deps = {"nccl"};
  EXPECT_EQ(choose(tiny(), d, "nccl").verdicts[0].eligibility.reason(), Reject::kPathNotEnabled);
}

// The all-reduce between GPUs joins ranks that hold the same tokens, as many as there are GPUs.
TEST(Factory, GpusReduceUnderAttentionTp) {
  const auto verdict = [](Parallel parallel, std::int64_t ranks, int gpus, auto&& change) {
    Deployment d = dep(ranks);
    d.device = Device::kCuda;
    d.parallel = parallel;
    if (parallel == Parallel::kTtp) std::swap(d.ep, d.tp);
    d.env.num_gpus = gpus;
    Problem p = tiny();
    change(p, d);
    return can_reduce(p, d);
  };
  const auto as_it_is = [](Problem&, Deployment&) {};
  for (const Parallel p : {Parallel::kTep, Parallel::kTtp})
    for (const std::int64_t ranks : {2, 3, 8})
      EXPECT_TRUE(verdict(p, ranks, 8, as_it_is).eligible());
  const struct {
    Eligibility got;
    Reject reason;
    const char* text;
  } cases[] = {
      {verdict(Parallel::kTep, 4, 2, as_it_is), Reject::kTopologyUnsupported,
       "4 ranks take a GPU each, 2 are here"},
      {verdict(Parallel::kTtp, 2, 1, as_it_is), Reject::kTopologyUnsupported, "1 is here"},
      {verdict(Parallel::kTep, 9, 9, as_it_is), Reject::kTopologyUnsupported, "joins 1..8"},
      {verdict(Parallel::kDtp, 2, 2, as_it_is), Reject::kPathNotEnabled, "parallel is dtp on cuda"},
      {verdict(Parallel::kTep, 2, 2,
               [](Problem& p, Deployment&) { p.combine = CombinePrecision::kFp8; }),
       Reject::kPathNotEnabled, "the combine is fp8"},
      {verdict(Parallel::kTep, 2, 2, [](Problem&, Deployment& d) { d.slots = 10; }),
       Reject::kEplbUnsupported, "slots = 10 for 8 experts"},
      {verdict(Parallel::kTep, 2, 2, [](Problem& p, Deployment&) { p.hidden = 50000; }),
       Reject::kShapeUnaligned, "hidden = 50000"},
  };
  for (const auto& c : cases) {
    ASSERT_FALSE(c.got.eligible()) << c.text;
    EXPECT_EQ(c.got.reason(), c.reason) << c.text;
    EXPECT_THAT(c.got.detail(), HasSubstr(c.text));
  }
}

TEST(Factory, EveryNameIsAValueOfTheSwitch) {
  int rows = 0;
  for (const resolve::Switch& row : resolve::switch_table()) {
    if (row.name != "SWITCHYARD_COMM") continue;
    ++rows;
    for (const Strategy* s : strategies()) {
      EXPECT_EQ(row.canonical(row.name, s->name), s->name);
      EXPECT_EQ(find_strategy(s->name), s);
    }
    for (const auto& [ancestor, ours] : {std::pair{"NVLINK_ONE_SIDED", "one_sided"},
                                         {"NVLINK_TWO_SIDED", "two_sided"},
                                         {"ALLGATHER", "all_gather"},
                                         {"NCCL_EP", "nccl"},
                                         {"DEEPEP", "compact"},
                                         {"DEEPEPLOWLATENCY", "expert_major"}})
      EXPECT_TRUE(find_strategy(row.canonical(row.name, ancestor)) == find_strategy(ours));
  }
  EXPECT_EQ(rows, 1);
  EXPECT_EQ(find_strategy("pigeons"), nullptr);
}

}  // namespace
}  // namespace switchyard::comm
