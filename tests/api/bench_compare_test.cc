// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/usage_error.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using test::usage_error_of;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Json state(double p50, double p90, int samples = 100) {
  return {{"time_us", {{"p50", p50}, {"p90", p90}, {"samples", samples}}}};
}

Json row(const std::string& format, int tokens, Json cold) {
  return {{"preset", "tiny"},         {"layer", 0},       {"format", format},
          {"activations", "format"},  {"tokens", tokens}, {"routing", "uniform"},
          {"leaf", "leaf." + format}, {"threads", 2},     {"cold", std::move(cold)}};
}

Json file(std::vector<Json> rows) {
  Json rate = {{"gbps", 20.0}, {"gflops", 100.0}};
  return {{"schema", "switchyard.bench.layer.1"},
          {"machine",
           {{"cpu_model", "Abacus 9"},
            {"cpus", 2},
            {"cpu_isa", "avx512"},
            {"cpu_best_isa", "amx"},
            {"l3_bytes", 1},
            {"gpus", 0},
            {"sm", 0}}},
          {"ok", true},
          {"roof", {{"start", rate}, {"end", rate}}},
          {"measurements", std::move(rows)}};
}

Comparison compare(const Json& a, const Json& b, bool across = false, double noise = 0.05) {
  return compare_benches({.before = a.dump(),
                          .after = b.dump(),
                          .before_name = "a.json",
                          .after_name = "b.json",
                          .noise = noise,
                          .across_machines = across});
}

std::string refusal(const Json& a, const Json& b) {
  return usage_error_of([&] { compare(a, b); });
}

TEST(Compare, JudgesEachRowByTheLeastNoise) {
  const Json a = file({row("nvfp4", 1, state(100, 100)), row("nvfp4", 8, state(100, 100)),
                       row("bf16", 1, state(100, 100)), row("bf16", 8, state(100, 100))});
  const Json b = file({row("bf16", 8, state(106, 106)), row("bf16", 1, state(104, 104)),
                       row("nvfp4", 8, state(94, 94)), row("nvfp4", 1, state(96, 96))});
  const Comparison c = compare(a, b);
  EXPECT_FALSE(c.ok);
  ASSERT_EQ(c.rows.size(), 4u) << "the order of the rows does not matter";
  const auto change = [&](const std::string& part) {
    for (const ComparedRow& r : c.rows)
      if (r.key.find(part) != std::string::npos) return r.change;
    throw std::runtime_error(part);
  };
  EXPECT_EQ(change("bf16, activations format, tokens 8"), Change::kSlower);
  EXPECT_EQ(change("bf16, activations format, tokens 1"), Change::kWithinNoise);
  EXPECT_EQ(change("nvfp4, activations format, tokens 8"), Change::kFaster);
  EXPECT_EQ(change("nvfp4, activations format, tokens 1"), Change::kWithinNoise);
  EXPECT_TRUE(compare(a, a).ok);
  EXPECT_TRUE(compare(a, b, false, 0.07).ok) << "the bound can be widened";
  EXPECT_TRUE(compare(b, file({row("bf16", 8, state(90, 90))})).ok) << "faster is no failure";
}

TEST(Compare, ScatteredCallsWidenTheBound) {
  const Json before = file({row("bf16", 1, state(100, 160, 9))});
  const Json after = file({row("bf16", 1, state(120, 190, 9))});
  const Comparison wide = compare(before, after);
  EXPECT_EQ(wide.rows[0].change, Change::kWithinNoise);
  EXPECT_NEAR(wide.rows[0].bound, 3 * std::hypot(0.6, 70.0 / 120) * 1.2533 / 1.2816 / 3, 1e-9);
  const Json many_before = file({row("bf16", 1, state(100, 160, 900))});
  const Json many_after = file({row("bf16", 1, state(120, 190, 900))});
  EXPECT_EQ(compare(many_before, many_after).rows[0].change, Change::kSlower)
      << "a hundred times the calls tell a tenth of the difference";
}

TEST(Compare, ADriftingRoofWidensEveryBound) {
  Json a = file({row("bf16", 1, state(100, 100))}), b = file({row("bf16", 1, state(120, 120))});
  EXPECT_FALSE(compare(a, b).ok);
  b["roof"]["end"]["gflops"] = 70.0;
  const Comparison c = compare(a, b);
  EXPECT_TRUE(c.ok);
  EXPECT_NEAR(c.rows[0].bound, 0.3, 1e-12);
  EXPECT_THAT(c.notices, ElementsAre(HasSubstr("drifted by 30%")));
}

TEST(Compare, ColdAndWarmAreRowsOfTheirOwn) {
  Json both = row("bf16", 1, state(100, 100)), slow = both;
  both["warm"] = state(50, 50);
  slow["warm"] = state(80, 80);
  const Comparison c = compare(file({both}), file({slow}));
  ASSERT_EQ(c.rows.size(), 2u);
  EXPECT_EQ(c.rows[0].state, "cold");
  EXPECT_EQ(c.rows[0].change, Change::kWithinNoise);
  EXPECT_EQ(c.rows[1].state, "warm");
  EXPECT_EQ(c.rows[1].change, Change::kSlower);
}

TEST(Compare, AnotherLayerOrDeviceIsAnotherRow) {
  const Json plain = row("bf16", 1, state(100, 100));
  Json fewer = plain, gpu = plain, none = plain;
  fewer["overrides"] = {"top_k 1", "without shared"};
  gpu["device"] = "cuda";
  none["overrides"] = Json::array();
  EXPECT_THAT(refusal(file({plain}), file({fewer})), HasSubstr("no row in common"));
  EXPECT_THAT(refusal(file({plain}), file({gpu})), HasSubstr("no row in common"));
  EXPECT_TRUE(compare(file({plain}), file({none})).ok) << "files of before there were overrides";
  const Comparison both = compare(file({plain, fewer}), file({fewer, none}));
  EXPECT_EQ(both.rows.size(), 2u);
  EXPECT_THAT(both.only_after, IsEmpty());
}

TEST(Compare, ListsWhatOnlyOneFileHolds) {
  const Comparison c = compare(file({row("bf16", 1, state(1, 1)), row("bf16", 8, state(1, 1))}),
                               file({row("bf16", 8, state(1, 1)), row("nvfp4", 1, state(1, 1))}));
  EXPECT_THAT(c.only_before, ElementsAre(HasSubstr("bf16, activations format, tokens 1")));
  EXPECT_THAT(c.only_after, ElementsAre(HasSubstr("nvfp4")));
  EXPECT_EQ(c.rows.size(), 1u);
  EXPECT_THAT(refusal(file({row("bf16", 1, state(1, 1))}), file({row("fp8", 1, state(1, 1))})),
              HasSubstr("no row in common"));
}

// A time of a wrong result is the time of something else.
TEST(Compare, FailsOnRowsThatWereWrong) {
  Json right = row("bf16", 1, state(100, 100)), wrong = right;
  right["ok"] = true, wrong["ok"] = false;
  EXPECT_TRUE(compare(file({right}), file({right})).ok);
  for (bool before : {true, false}) {
    const Comparison c = compare(file({before ? wrong : right}), file({before ? right : wrong}));
    EXPECT_FALSE(c.ok);
    EXPECT_EQ(c.rows[0].change, Change::kWithinNoise) << "and not for its time";
    EXPECT_THAT(c.notices,
                ElementsAre(testing::AllOf(HasSubstr(before ? "a.json" : "b.json"),
                                           HasSubstr("format bf16"), HasSubstr("wrong results"))));
  }
  Json whole = file({row("bf16", 1, state(100, 100))}), good = whole;
  whole["ok"] = false;
  const Comparison c = compare(good, whole);
  EXPECT_FALSE(c.ok);
  EXPECT_THAT(c.notices, ElementsAre(HasSubstr("b.json: its results were wrong")));
}

TEST(Compare, RefusesOtherMachinesUnlessAsked) {
  const Json a = file({row("bf16", 1, state(1, 1))});
  for (const char* key : {"cpu_model", "cpus", "cpu_best_isa", "l3_bytes", "gpus", "sm"}) {
    Json b = a;
    b["machine"][key] = b["machine"][key].is_string() ? Json("other") : Json(77);
    EXPECT_THAT(refusal(a, b), HasSubstr("ask across machines")) << key;
    EXPECT_THAT(compare(a, b, true).notices, ElementsAre(HasSubstr("machines differ")));
  }
  Json pinned = a;
  pinned["machine"]["cpu_isa"] = "amx";
  EXPECT_THAT(compare(a, pinned).notices, ElementsAre(HasSubstr("avx512 before, amx after")))
      << "two tiers of one machine are what one wants to compare";
  EXPECT_THAT(compare(a, a).notices, IsEmpty());
}

TEST(Compare, RefusesWhatIsNoResultAndNamesTheFile) {
  const Json good = file({row("bf16", 1, state(1, 1))});
  const auto spoilt = [&](auto change) {
    Json b = good;
    change(b);
    return refusal(good, b);
  };
  EXPECT_THAT(usage_error_of([&] {
                compare_benches({"{", good.dump(), "x.json", "y.json"});
              }),
              HasSubstr("x.json is no result"));
  EXPECT_THAT(spoilt([](Json& b) { b.erase("schema"); }), HasSubstr("b.json is no result"));
  EXPECT_THAT(spoilt([](Json& b) { b["schema"] = "switchyard.bench.layer.9"; }),
              HasSubstr("schema 'switchyard.bench.layer.9'"));
  EXPECT_THAT(spoilt([](Json& b) { b["measurements"][0]["cold"] = 3; }),
              HasSubstr("b.json cannot be compared: what should hold 'time_us' is no object"));
  EXPECT_THAT(spoilt([](Json& b) { b["machine"].erase("cpus"); }), HasSubstr("it has no 'cpus'"));
  EXPECT_THAT(spoilt([](Json& b) { b["machine"]["cpu_isa"] = 7; }),
              HasSubstr("'cpu_isa' is no text"));
  EXPECT_THAT(spoilt([](Json& b) { b["measurements"] = 7; }), HasSubstr("is no list"));
  EXPECT_THAT(spoilt([](Json& b) { b["measurements"][0]["cold"]["time_us"]["p50"] = "1"; }),
              HasSubstr("'p50' is no number"));
  EXPECT_THAT(spoilt([](Json& b) { b["ok"] = "yes"; }), HasSubstr("'ok' is neither"));
  EXPECT_THAT(spoilt([](Json& b) { b["measurements"][0]["cold"] = state(0, 0); }),
              HasSubstr("not those of any call"));
  EXPECT_THAT(spoilt([](Json& b) { b["measurements"].push_back(b["measurements"][0]); }),
              HasSubstr("twice"));
  EXPECT_THAT(spoilt([](Json& b) { b["roof"]["start"]["gbps"] = 0; }), HasSubstr("roof"));
  EXPECT_THAT(usage_error_of([&] { compare(good, good, false, -1); }), HasSubstr("noise = -1"));
  EXPECT_TRUE(compare(good, good).ok);
}

/// `file` as another benchmark's, with its rows under `list`.
Json of_kind(const std::string& schema, const std::string& list, std::vector<Json> rows) {
  Json out = file({});
  out.erase("measurements");
  out.erase("roof");
  out["schema"] = schema;
  out[list] = std::move(rows);
  return out;
}

// A search's row is one configuration, timed as a whole.
TEST(Compare, SearchResultsAreComparedByConfiguration) {
  auto result = [](double two_sided) {
    auto row = [](const char* strategy, double p50) {
      return Json{{"preset", "tiny"},
                  {"tokens", 4},
                  {"ranks", 2},
                  {"config", {{"strategy", strategy}}},
                  {"time_us", {{"p50", p50}, {"p90", p50}}},
                  {"calls", 50},
                  {"place", 1},
                  {"ok", true}};
    };
    return of_kind("switchyard.bench.search.1", "measurements",
                   {row("one_sided", 100), row("two_sided", two_sided)});
  };
  const Comparison c = compare(result(100), result(120));
  ASSERT_EQ(c.rows.size(), 2U);
  EXPECT_EQ(c.rows[0].change, Change::kWithinNoise);
  EXPECT_EQ(c.rows[1].change, Change::kSlower);
  EXPECT_THAT(c.rows[1].key, HasSubstr("two_sided"));
}

// What tells two exchanges apart stands beside the rows, and its copy rate drifts as a roof does.
TEST(Compare, ExchangeResultsAreComparedByPhaseAndShape) {
  auto result = [](int hidden, double end) {
    Json row = {{"strategy", "one_sided"}, {"tokens", 512}, {"ok", true}};
    for (const char* phase : {"dispatch", "combine", "total"}) row[phase] = state(100, 100);
    Json out = of_kind("switchyard.bench.exchange.1", "measurements", {row});
    out.update(Json{{"ranks", 4}, {"hidden", hidden}, {"combine", "bf16"}});
    out["copy"] = {{"start", 10.0}, {"end", end}};
    return out;
  };
  const Comparison c = compare(result(4096, 10), result(4096, 12));
  ASSERT_EQ(c.rows.size(), 3U);
  EXPECT_THAT(c.rows[0].key, HasSubstr("hidden 4096"));
  EXPECT_NEAR(c.rows[0].bound, 0.2, 1e-9);
  EXPECT_THAT(refusal(result(4096, 10), result(7168, 10)), HasSubstr("no row in common"));
}

TEST(Compare, AllReduceResultsSkipWhatWasNotTimed) {
  auto result = [](double fused) {
    Json row = {{"pattern", "sum"}, {"ranks", 2}, {"tokens", 8}, {"ok", true}};
    row["fused"] = state(fused, fused);
    row["separate"] = {{"time_us", nullptr}, {"by", ""}};
    return of_kind("switchyard.bench.allreduce.1", "rows", {row});
  };
  const Comparison c = compare(result(100), result(50));
  ASSERT_EQ(c.rows.size(), 1U);
  EXPECT_EQ(c.rows[0].change, Change::kFaster);
  EXPECT_EQ(c.rows[0].state, "fused");
}

TEST(Compare, RoutingResultsHaveTheirOwnRows) {
  Json a = file({});
  a.erase("measurements");
  a.erase("roof");
  a["schema"] = "switchyard.bench.routing.1";
  a["gemm"] = {{{"preset", "tiny"}, {"tokens", 1}, {"gemm", state(10, 10)}}};
  a["choice"] = {{{"preset", "tiny"}, {"tokens", 1}, {"method", "TopK"}, {"choice", state(5, 5)}}};
  Json b = a;
  b["choice"][0]["choice"] = state(6, 6);
  const Comparison c = compare(a, b);
  ASSERT_EQ(c.rows.size(), 2u);
  EXPECT_FALSE(c.ok);
  EXPECT_THAT(refusal(a, file({row("bf16", 1, state(1, 1))})), HasSubstr("one kind"));
}

}  // namespace
}  // namespace switchyard
