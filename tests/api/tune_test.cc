// SPDX-License-Identifier: Apache-2.0
// Tuning of whole layers: what is written, what a second run finds, ranks that choose alike. How
// fast anything is stays out of it.
#include "switchyard/api/tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>

#include "switchyard/api/tuning.h"
#include "switchyard/base/text.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/resolve/probe.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using test::usage_error_of;
using testing::HasSubstr;

class Tuning : public testing::Test {
 protected:
  void SetUp() override {
    options_.seconds = 0.004;
    options_.tokens = {3, 4};
    options_.source.build.threads = 2;
    options_.out = (std::filesystem::path(testing::TempDir()) / "tune_test.json").string();
    std::filesystem::remove(options_.out);
  }
  TuneOptions options_;
};

TEST_F(Tuning, WritesOneEntryForEachCallAndBucket) {
  options_.formats = {"none", "nvfp4"};
  std::vector<std::string> said;
  options_.progress = [&](const std::string& what) { said.push_back(what); };
  const TuneResult result = tune_layers(options_);
  ASSERT_EQ(result.calls.size(), 2u) << "3 and 4 tokens share a bucket";
  EXPECT_EQ(result.entries, 2);
  EXPECT_THAT(said, testing::Contains(HasSubstr("nvfp4, up to 4 tokens")));
  const tune::TuningTable table = tune::read_table(options_.out);
  tune::require_made_for(table, table_here(resolve::environment()), options_.out);
  for (const char* format : {"none", "nvfp4"}) {
    BuildOptions build = options_.source.build;
    build.format = format;
    const MoeLayer layer = MoeLayer::from_preset("tiny", build);
    for (const tune::TunableCall& call : layer::tunable_calls(layer.impl(), 4)) {
      const tune::TableEntry* e = table.find(call.key);
      ASSERT_NE(e, nullptr) << format;
      EXPECT_EQ(e->plan, call.candidates.front());
      EXPECT_THAT(call.candidates, testing::Contains(e->tactic));
      EXPECT_EQ(e->candidates, std::int64_t(call.candidates.size()));
      EXPECT_GE(e->rounds, 3);
      if (e->tactic == e->plan) {
        EXPECT_EQ(e->us, e->plan_us);
      }
    }
    build.tuning = options_.out;
    EXPECT_EQ(MoeLayer::from_preset("tiny", build).tactics(4)[0].use.tactic,
              table.find(layer::tunable_calls(layer.impl(), 4)[0].key)->tactic);
  }
}

TEST_F(Tuning, ASecondRunFindsWhatTheFirstWrote) {
  const TuneResult first = tune_layers(options_);
  const tune::TuningTable table = tune::read_table(options_.out);
  options_.tokens = {4, 8};
  const TuneResult second = tune_layers(options_);
  ASSERT_EQ(second.calls.size(), 2u);
  EXPECT_FALSE(first.calls[0].known);
  EXPECT_TRUE(second.calls[0].known);
  EXPECT_EQ(second.calls[0].tactic, first.calls[0].tactic);
  EXPECT_FALSE(second.calls[1].known) << "8 tokens are new";
  EXPECT_EQ(tune::read_table(options_.out).entries[0], table.entries[0]);
  options_.again = true;
  for (const TunedCall& t : tune_layers(options_).calls) EXPECT_FALSE(t.known);
}

TEST_F(Tuning, TellsTheTimeOfEveryWay) {
  const TuneResult result = tune_layers(options_);
  for (const TunedCall& t : result.calls) {
    ASSERT_EQ(std::int64_t(t.ways.size()), t.candidates);
    EXPECT_EQ(t.ways.front().first, t.plan);
    std::vector<Tactic> ways;
    for (const auto& [tactic, us] : t.ways) {
      EXPECT_GT(us, 0) << to_string(tactic);
      ways.push_back(tactic);
    }
    EXPECT_THAT(ways, testing::Contains(t.tactic));
  }
  for (const TunedCall& t : tune_layers(options_).calls)
    EXPECT_TRUE(t.ways.empty()) << "the table had it, and nothing was compared";
}

TEST_F(Tuning, TunesTheSharedExpertToo) {
  options_.source.checkpoint = std::string(SWITCHYARD_TEST_DATA) + "/deepseek_v3";
  const TuneResult result = tune_layers(options_);
  std::set<std::string> names;
  for (const TunedCall& t : result.calls) names.insert(t.call);
  EXPECT_EQ(names, (std::set<std::string>{"experts", "shared expert"}));
}

TEST_F(Tuning, RanksThatHoldTheSameTokensChooseAlike) {
  options_.source.build.ep = 1, options_.source.build.tp = 2;
  options_.source.build.threads = 1;
  for (Parallel parallel : {Parallel::kTtp, Parallel::kDtp}) {
    std::filesystem::remove(options_.out);
    options_.source.build.parallel = parallel;
    const TuneResult result = tune_layers(options_);
    ASSERT_EQ(result.calls.size(), 1u);
    EXPECT_THAT(result.calls[0].why, HasSubstr("on 2 ranks"));
    const tune::TuningTable table = tune::read_table(options_.out);
    ASSERT_EQ(table.entries.size(), 2u) << "tiny's 96 columns are cut into 64 and 32";
    EXPECT_NE(table.entries[0].key.inter, table.entries[1].key.inter);
    EXPECT_EQ(table.entries[0].tactic != table.entries[0].plan,
              table.entries[1].tactic != table.entries[1].plan);
    EXPECT_EQ(table.entries[0].us, table.entries[1].us) << "one measurement";
  }
}

TEST_F(Tuning, AnEmptyFileIsATableToBe) {
  std::ofstream(options_.out).close();
  EXPECT_EQ(tune_layers(options_).entries, 1);
  EXPECT_EQ(tune::read_table(options_.out).entries.size(), 1u);
}

// A table without entries would be found by the next run and say nothing.
TEST_F(Tuning, ARunThatFailsLeavesWhatWasThere) {
  std::filesystem::remove(options_.out);
  options_.progress = [](const std::string&) { throw std::runtime_error("stopped"); };
  EXPECT_THROW(tune_layers(options_), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(options_.out));
  std::ofstream(options_.out).close();
  EXPECT_THROW(tune_layers(options_), std::runtime_error);
  EXPECT_EQ(std::filesystem::file_size(options_.out), 0u);
}

TEST_F(Tuning, AnEntryThatIsKnownMustRun) {
  tune_layers(options_);
  tune::TuningTable table = tune::read_table(options_.out);
  table.entries[0].tactic = PanelTactic{.fc1_panels = 99};
  tune::write_table(table, options_.out);
  EXPECT_THAT(usage_error_of([&] { tune_layers(options_); }),
              testing::AllOf(HasSubstr(options_.out), HasSubstr("fc1_panels=99"),
                             HasSubstr("with again set")));
  options_.again = true;
  EXPECT_FALSE(tune_layers(options_).calls[0].known);
}

TEST_F(Tuning, TwoRanksWithoutAModeHaveTheLayersOwn) {
  options_.source.build.tp = 2;
  options_.source.build.threads = 1;
  ASSERT_FALSE(options_.source.build.parallel.has_value());
  EXPECT_EQ(tune_layers(options_).calls.size(), 1u);
}

TEST(TuneRule, RanksHaveTheirOwn) {
  EXPECT_THAT(tune_rule(1), testing::AllOf(HasSubstr("be no slower at the bucket's fewest tokens"),
                                           HasSubstr("fresh")));
  EXPECT_THAT(tune_rule(2),
              testing::AllOf(HasSubstr("nothing is asked at the bucket's fewest tokens"),
                             HasSubstr("caches may hold them"), HasSubstr("measured anew"),
                             testing::Not(HasSubstr("fresh"))));
}

TEST_F(Tuning, WhatCannotBeTunedIsRefused) {
  const auto error = [&](auto change) {
    TuneOptions o = options_;
    change(o);
    return usage_error_of([&] { tune_layers(o); });
  };
  EXPECT_THAT(error([](auto& o) { o.tokens = {}; }), HasSubstr("no tokens"));
  for (std::int64_t tokens : {std::int64_t(0), std::int64_t(1) << 62, INT64_MAX})
    EXPECT_THAT(error([&](auto& o) { o.tokens = {tokens}; }), HasSubstr(cat("tokens = ", tokens)));
  EXPECT_THAT(error([](auto& o) { o.seconds = 0; }), HasSubstr("must be above 0, at most 3600"));
  EXPECT_THAT(error([](auto& o) { o.again = true, o.out = ""; }), HasSubstr("again is set"));
  EXPECT_THAT(error([](auto& o) { o.formats = {"int3"}; }), HasSubstr("int3"));
  EXPECT_THAT(error([](auto& o) { o.source.build.tuning = "t.json"; }), HasSubstr("t.json"));
  EXPECT_THAT(error([](auto& o) { o.source.layer = 1; }), HasSubstr("tune: layer = 1"));
  EXPECT_THAT(error([](auto& o) { o.source.finalize = "fused"; }), HasSubstr("tune: finalize"));
  tune::TuningTable other = table_here(resolve::environment());
  other.machine.cpu_model = "another";
  tune::write_table(other, options_.out);
  EXPECT_THAT(error([](auto&) {}),
              testing::AllOf(HasSubstr("another machine"), HasSubstr("delete " + options_.out),
                             testing::Not(HasSubstr("switchyard tune"))));
  std::ofstream(options_.out) << "{}";
  EXPECT_THAT(error([](auto&) {}), HasSubstr("delete " + options_.out));
  options_.source.build.ep = 2, options_.source.build.parallel = Parallel::kDep;
  EXPECT_THROW(tune_layers(options_), CannotServe);
}

}  // namespace
}  // namespace switchyard
