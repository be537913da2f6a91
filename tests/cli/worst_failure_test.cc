// SPDX-License-Identifier: Apache-2.0
#include "cli/worst_failure.h"

#include <gtest/gtest.h>

namespace switchyard::cli {
namespace {

using Ending = Processes::Ending;

const Ending kWell{kOk, "", true}, kWaited{kNoDevice, "rank 1 waited 5 s", true},
    kFull{kBadInput, "memory is exhausted", true}, kSilent{kFailed, "", true},
    kBehind{kOk, "", false}, kBehindWithText{kBadInput, "the ranks differ", false};

TEST(WorstFailure, IsTheOneThatExplainsMost) {
  EXPECT_EQ(worst_failure({kWaited, kFull}).text, "memory is exhausted");
  EXPECT_EQ(worst_failure({kFull, kWaited}).text, "memory is exhausted");
  EXPECT_EQ(worst_failure({kWaited, kBehind, kFull}).text, "memory is exhausted");
  EXPECT_EQ(worst_failure({kWaited, kBehind, kFull}).status, kBadInput);
  EXPECT_EQ(worst_failure({kWaited, kBehind}).text, "rank 1 waited 5 s");
  EXPECT_EQ(worst_failure({kWaited, kBehindWithText}).text, "rank 1: the ranks differ");
  EXPECT_EQ(worst_failure({kWell, kSilent}).status, kFailed);
}

TEST(WorstFailure, OneThatGoesOnIsToldWhereNobodyElseSaysWhy) {
  const Failure f = worst_failure({kWell, kWell, kBehind});
  EXPECT_EQ(f.status, kBadInput);
  EXPECT_TRUE(f.text.starts_with("rank 2 goes on where others have ended")) << f.text;
}

TEST(WorstFailure, IsNoneWhereAllEndedWell) {
  EXPECT_EQ(worst_failure({kWell, kWell}).status, kOk);
  EXPECT_EQ(worst_failure({}).status, kOk);
}

}  // namespace
}  // namespace switchyard::cli
