// SPDX-License-Identifier: Apache-2.0
// The search over configurations: everything that the axes span is measured or skipped with its
// reason, and what is chosen is what the resolver chooses for `run`.
#include "switchyard/api/bench_search.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "switchyard/comm/factory.h"
#include "switchyard/resolve/probe.h"
#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

BenchSearchOptions on_two_ranks() {
  BenchSearchOptions o;
  o.source.build.ep = 2;
  o.source.build.parallel = Parallel::kDep;
  o.source.build.threads = 1;
  o.tokens = {4};
  return o;
}

TEST(BenchSearch, ItsChoiceIsTheResolversAndTheRestIsRankedOrSkipped) {
  BenchSearchOptions o = on_two_ranks();
  o.axes.comm = o.axes.graph = true;
  o.max_configs = 3;
  const BenchSearchResult r = bench_search(o);
  RunOptions plain = o.source;
  plain.tokens = 4;
  const Measurement resolved = run(plain).measurements.at(0);
  EXPECT_EQ(r.choice, (SearchConfig{resolved.leaf, resolved.parallel, resolved.strategy, false}));
  EXPECT_EQ(r.choice.strategy, "one_sided");
  EXPECT_TRUE(r.ok);
  ASSERT_EQ(r.rows.size(), 3U);
  EXPECT_EQ(std::ranges::count_if(r.rows, [](const auto& row) { return row.chosen; }), 1);
  for (std::size_t i = 0; i < r.rows.size(); ++i) {
    EXPECT_EQ(r.rows[i].place, std::int64_t(i) + 1);
    EXPECT_EQ(r.rows[i].chosen, r.rows[i].config == r.choice);
    EXPECT_TRUE(i == 0 || r.rows[i - 1].measured.time_p50 <= r.rows[i].measured.time_p50);
    EXPECT_EQ(r.rows[i].measured.strategy, r.rows[i].config.strategy) << "pinned, and so it ran";
  }
  auto reason_of = [&](std::string_view strategy, bool graph) {
    for (const SkippedConfig& s : r.skipped)
      if (s.config.strategy == strategy && s.config.graph == graph)
        return s.reason() + ": " + s.detail;
    return std::string("not skipped");
  };
  EXPECT_THAT(reason_of("nccl", false), StartsWith("dep_missing: "));
  EXPECT_THAT(reason_of("fused", false), StartsWith("max_configs: the 3 in front"));
  // A graph is the GPU's: each configuration stands in the list without one and with one.
  for (const comm::Strategy* s : comm::strategies())
    EXPECT_THAT(reason_of(s->name, true),
                StartsWith("topology_unsupported: the leaf runs on the CPU"))
        << s->name;
}

// The axis graph alone: the one configuration is measured, and its graph is listed with why not.
TEST(BenchSearch, TheGraphOfACpuLayerIsListedNotIgnored) {
  BenchSearchOptions o = on_two_ranks();
  o.axes.graph = true;
  const BenchSearchResult r = bench_search(o);
  ASSERT_EQ(r.rows.size(), 1U);
  ASSERT_EQ(r.skipped.size(), 1U);
  EXPECT_TRUE(r.skipped[0].config.graph);
  EXPECT_EQ(r.skipped[0].reject, Reject::kTopologyUnsupported);
}

/// An environment in which SWITCHYARD_COMM says `strategy`.
Environment with_switch(const std::string& strategy) {
  Environment env = resolve::environment();
  for (auto& [name, value] : env.flags)
    if (name == "SWITCHYARD_COMM") value = strategy;
  return env;
}

// The switch is a pin as the argument is: it cannot be searched over, and holds in every mode.
TEST(BenchSearch, ThePinOfTheSwitchHoldsOrIsRefused) {
  const resolve::ScopedEnvironment pinned(with_switch("compact"));
  BenchSearchOptions o = on_two_ranks();
  o.axes.comm = true;
  EXPECT_THAT(test::usage_error_of([&] { bench_search(o); }),
              HasSubstr("SWITCHYARD_COMM pins the strategy to 'compact', and it is searched"));
  o.axes.comm = false;
  o.axes.parallel = true;
  const BenchSearchResult r = bench_search(o);
  ASSERT_EQ(r.rows.size(), 1U);
  EXPECT_EQ(r.choice.strategy, "compact");
  ASSERT_EQ(r.skipped.size(), 3U);
  for (const SkippedConfig& s : r.skipped) {
    EXPECT_EQ(s.reject, Reject::kTopologyUnsupported) << s.detail;
    EXPECT_THAT(s.detail, HasSubstr("(SWITCHYARD_COMM pins it)"));
  }
}

// A pinned strategy is not let go of for modes that have no place for it.
TEST(BenchSearch, APinnedStrategyStaysPinnedWhileModesAreSearched) {
  BenchSearchOptions o = on_two_ranks();
  o.source.build.comm = "two_sided";
  o.axes.parallel = true;
  const BenchSearchResult r = bench_search(o);
  ASSERT_EQ(r.rows.size(), 1U);
  EXPECT_EQ(r.rows[0].config.parallel, "dep");
  EXPECT_EQ(r.rows[0].measured.strategy, "two_sided");
  EXPECT_EQ(r.skipped.size(), 3U) << "dtp, tep and ttp refuse it";
}

TEST(BenchSearch, WithoutAxesItTimesTheLayerOnItsRanks) {
  const BenchSearchResult r = bench_search(on_two_ranks());
  ASSERT_EQ(r.rows.size(), 1U);
  EXPECT_EQ(r.rows[0].measured.ranks, 2);
  EXPECT_GT(r.rows[0].measured.time_p50, 0);
  EXPECT_TRUE(r.skipped.empty());
}

TEST(BenchSearch, ContradictionsAreNamed) {
  BenchSearchOptions o = on_two_ranks();
  o.axes.comm = true;
  o.source.build.comm = "two_sided";
  EXPECT_THAT(test::usage_error_of([&] { bench_search(o); }),
              HasSubstr("the strategy is pinned to 'two_sided' and searched"));
  o = on_two_ranks();
  o.tokens = {0};
  EXPECT_THAT(test::usage_error_of([&] { bench_search(o); }), HasSubstr("tokens = 0"));
  o = on_two_ranks();
  o.max_configs = 0;
  EXPECT_THAT(test::usage_error_of([&] { bench_search(o); }), HasSubstr("max_configs = 0"));
}

}  // namespace
}  // namespace switchyard
