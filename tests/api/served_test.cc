// SPDX-License-Identifier: Apache-2.0
// What serves a problem on ranks: preferences whose ranks cannot be joined degrade, pins do not.
#include "switchyard/api/served.h"

#include <algorithm>

#include "switchyard/resolve/warnings.h"
#include "tests/support/selection_cases.h"

namespace switchyard::api {
namespace {

using resolve::Request;
using test::deployment_on;
using test::gpu_environment;
using test::problem_of;
using testing::AllOf;
using testing::HasSubstr;

const std::string kCpu = "switchyard.cpu.fused_moe.nvfp4",
                  kCuda = "switchyard.cuda.fused_moe.nvfp4";

class ServedOnRanks : public testing::Test {
 protected:
  ServedOnRanks() {
    before_ = resolve::set_warning_sink([this](std::string_view t) { heard_.emplace_back(t); });
    d_.ep = 2;
    d_.env.num_gpus = 2;
  }
  ~ServedOnRanks() override { resolve::set_warning_sink(before_); }

  Served ask(Parallel parallel, const Request& request) {
    d_.parallel = parallel;
    return ask_served(problem_of("nvfp4"), d_, request, "");
  }
  static bool holds(const std::vector<std::string>& list, const std::string& leaf) {
    return std::find(list.begin(), list.end(), leaf) != list.end();
  }

  Deployment d_ = deployment_on(Device::kCpu, gpu_environment(90));
  std::vector<std::string> heard_;

 private:
  resolve::WarningSink before_;
};

TEST_F(ServedOnRanks, APreferenceThatRanksCannotKeepGivesWay) {
  for (const char* word : {"TRTLLM", "cuda"}) {
    heard_.clear();
    const Served s = ask(Parallel::kDep, {.prefer = word});
    EXPECT_TRUE(s.built.eligible()) << s.built.detail();
    EXPECT_EQ(s.report.winner, kCpu);
    EXPECT_NE(s.join.strategy, nullptr);
    EXPECT_EQ(s.report.requested.prefer, word);
    EXPECT_TRUE(s.report.degraded);
    EXPECT_EQ(s.report.degraded_from, kCuda);
    EXPECT_TRUE(holds(s.report.eligible, kCpu));
    EXPECT_FALSE(holds(s.report.eligible, kCuda));
    ASSERT_FALSE(s.report.rejected.empty());
    EXPECT_EQ(s.report.rejected.front().candidate, kCuda);
    EXPECT_EQ(s.report.rejected.front().reason, Reject::kPathNotEnabled);
    ASSERT_EQ(heard_.size(), 1U);
    EXPECT_THAT(heard_[0], AllOf(HasSubstr(word), HasSubstr("path_not_enabled"), HasSubstr(kCpu)));
    EXPECT_EQ(s.report.warnings.back(), heard_[0]);
  }
}

TEST_F(ServedOnRanks, APreferenceThatRanksCanKeepIsKept) {
  const Served s = ask(Parallel::kTep, {.prefer = "cuda"});
  EXPECT_TRUE(s.built.eligible()) << s.built.detail();
  EXPECT_EQ(s.report.winner, kCuda);
  EXPECT_FALSE(s.report.degraded);
  EXPECT_TRUE(heard_.empty());
}

TEST_F(ServedOnRanks, APinIsNotGivenUp) {
  const Served s = ask(Parallel::kDep, {.device = Device::kCuda});
  EXPECT_FALSE(s.built.eligible());
  EXPECT_EQ(s.report.winner, kCuda);
  EXPECT_TRUE(heard_.empty());
}

TEST_F(ServedOnRanks, AWithdrawnWinnerIsNobody) {
  Served s = ask(Parallel::kDep, {});
  withdraw_winner(s.report, Reject::kPathNotEnabled, "it is a test");
  EXPECT_EQ(s.report.winner, "");
  EXPECT_TRUE(s.report.eligible.empty());
  EXPECT_THAT(s.report.rejected.front().detail, HasSubstr("it is a test"));
}

}  // namespace
}  // namespace switchyard::api
