// SPDX-License-Identifier: Apache-2.0
// Whether routing shares the launch that sorts and quantises: every answer, from values alone.
#include "switchyard/ops/grouped_ffn/routing_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace switchyard::ops {
namespace {

using testing::HasSubstr;
using Method = RoutingMethodType;

/// A call that can have one launch, as a case changes it.
struct Asked {
  RoutingSpec spec = make_routing(Method::kRenormalize, 128, 8);
  RoutingCall call{.tokens = kMostJoinedTokens, .choices = 8};

  RoutingLaunch answer() {
    call.spec = &spec;
    return routing_launch(call);
  }
  std::string text() {
    const RoutingLaunch a = answer();
    EXPECT_EQ(report(a, call).together, a == RoutingLaunch::kTogether);
    EXPECT_EQ(report(a, call).reason, to_string(a));
    EXPECT_EQ(report(a, call).text, explain(a, call));
    return explain(a, call);
  }
};

TEST(RoutingLaunchOf, FewTokensOfACompiledRecipeShareIt) {
  for (Method m : {Method::kRenormalize, Method::kDefault, Method::kDeepSeekV3})
    for (std::int64_t tokens : {0, 1, 8}) {
      Asked a{.spec = make_routing(m, 256, 8)};
      a.call.tokens = tokens;
      EXPECT_EQ(a.answer(), RoutingLaunch::kTogether) << to_string(m);
      EXPECT_THAT(a.text(), HasSubstr("share a launch"));
    }
}

TEST(RoutingLaunchOf, EveryOtherCallHasItsReason) {
  Asked a;
  a.call.asked = TileRouting::kApart;
  EXPECT_EQ(a.answer(), RoutingLaunch::kAskedApart);
  EXPECT_THAT(a.text(), HasSubstr("routing=1"));
  Asked given{.spec = make_routing(Method::kUnspecified, 128, 8)};
  EXPECT_EQ(given.answer(), RoutingLaunch::kCallersChoice);
  EXPECT_THAT(given.text(), HasSubstr("caller"));
  Asked fused;
  fused.call.choices = 9;
  EXPECT_EQ(fused.answer(), RoutingLaunch::kFusedShared);
  EXPECT_THAT(fused.text(), HasSubstr("its 8 choices, the experts read 9"));
  Asked many;
  many.call.tokens = 9;
  EXPECT_EQ(many.answer(), RoutingLaunch::kManyTokens);
  EXPECT_THAT(many.text(), HasSubstr("9 tokens, the limit is 8"));
  Asked hashed{.spec = make_routing(Method::kHash, 64, 8)},
      wide{.spec = make_routing(Method::kRenormalize, 1024, 8)};
  EXPECT_EQ(hashed.answer(), RoutingLaunch::kNoRouter);
  EXPECT_EQ(wide.answer(), RoutingLaunch::kNoRouter);
  EXPECT_THAT(wide.text(), HasSubstr("1024 experts, the limit is 512"));
  Asked input;
  input.spec.placement = WeightPlacement::kInput;
  EXPECT_EQ(input.answer(), RoutingLaunch::kWeighedInput);
  EXPECT_THAT(input.text(), HasSubstr("input"));
  Asked half;
  half.call.dtype = Dtype::kFp16;
  EXPECT_EQ(half.answer(), RoutingLaunch::kFp16);
  EXPECT_THAT(half.text(), HasSubstr("fp16"));
}

TEST(RoutingLaunchOf, WhatCannotBeStandsBeforeWhatWasNotAsked) {
  Asked a;
  a.call.asked = TileRouting::kApart;
  a.call.tokens = 9;
  EXPECT_EQ(a.answer(), RoutingLaunch::kManyTokens);
}

TEST(RoutingLaunchOf, EveryAnswerHasANameAndASentenceOfItsOwn) {
  using enum RoutingLaunch;
  const RoutingSpec spec = make_routing(Method::kRenormalize, 128, 8);
  std::set<std::string> texts;
  std::set<std::string_view> names;
  constexpr RoutingLaunch kAll[] = {kTogether,   kAskedApart, kCallersChoice, kFusedShared,
                                    kManyTokens, kNoRouter,   kWeighedInput,  kFp16,
                                    kAmongRanks, kOnCpu};
  for (RoutingLaunch answer : kAll) {
    names.insert(to_string(answer));
    texts.insert(explain(answer, {.spec = &spec}));
  }
  EXPECT_EQ(names.size(), std::size(kAll));
  EXPECT_EQ(texts.size(), std::size(kAll));
}

}  // namespace
}  // namespace switchyard::ops
