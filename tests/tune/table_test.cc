// SPDX-License-Identifier: Apache-2.0
// Tables of choices on disk, the choices that a layer takes from them, and tapes of its calls.
#include "switchyard/tune/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "switchyard/api/tuning.h"
#include "switchyard/base/version.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/tune/shipped.h"
#include "tests/cases/tactic_case.h"
#include "tests/meter/allocation_meter.h"
#include "tests/support/usage_error.h"

namespace switchyard::tune {
namespace {

using nlohmann::json;
using test::Call;
using test::usage_error_of;
using testing::HasSubstr;

const leaves::Leaf& leaf_of(const char* format, Device device = Device::kCpu) {
  return *leaves::find_leaf(format, device).leaf;
}

ops::FfnShape small_shape(const leaves::Leaf& leaf) {
  return {.hidden = 160,
          .inter = 96,
          .experts = 6,
          .top_k = 3,
          .weights = leaf.weights,
          .quant = leaf.activation};
}

TableEntry entry_of(const leaves::Leaf& leaf, std::int64_t tokens, const Tactic& tactic) {
  const ops::FfnShape shape = small_shape(leaf);
  const ops::FfnCall call{&shape, tokens, 2, CpuIsa::kPortable};
  return {key_of(leaf, call), tactic, leaf.ffn->plan(call), 90.5, 100.25, 0.01, 12, 9};
}

TuningTable sample() {
  return {.build = "0.1.0 (abc)",
          .fingerprint = "0123456789abcdef",
          .machine = {"a cpu", "avx512", "a gpu", 90},
          .entries = {entry_of(leaf_of("nvfp4"), 8, PanelTactic{4, 2, 8, 32}),
                      entry_of(leaf_of("fp8"), 64, PanelTactic{8, 8, 4, 64}),
                      entry_of(leaf_of("none", Device::kCuda), 8, TileTactic{8, 64})}};
}

// ---- the file ----

TEST(Table, ReadsBack) { EXPECT_EQ(parse_table(table_text(sample()), "t.json"), sample()); }

TEST(Table, EveryKeyIsNeededAndNoOtherIsTaken) {
  const json good = json::parse(table_text(sample()));
  const auto error = [](const json& j) {
    return usage_error_of([&] { parse_table(j.dump(), "t.json"); });
  };
  const std::vector<std::string> places = {"", "/machine", "/entries/1", "/entries/1/call"};
  for (const std::string& place : places) {
    const json::json_pointer at(place);
    for (const auto& [key, _] : good[at].items()) {
      json bad = good;
      bad[at].erase(key);
      EXPECT_THAT(error(bad), HasSubstr("has no '" + key + "'")) << place;
      bad = good;
      bad[at][key] = json::array({"?"});
      EXPECT_THAT(error(bad), HasSubstr("t.json")) << place << " " << key;
    }
    json bad = good;
    bad[at]["surplus"] = 1;
    EXPECT_THAT(error(bad), HasSubstr("'surplus' is unknown in version 1")) << place;
  }
}

TEST(Table, OtherKindsAndVersionsAreRefused) {
  const auto error = [](const char* place, const json& value) {
    json j = json::parse(table_text(sample()));
    j[json::json_pointer(place)] = value;
    return usage_error_of([&] { parse_table(j.dump(), "t.json"); });
  };
  EXPECT_THAT(error("/format", "switchyard.placement"), HasSubstr("another kind of file"));
  EXPECT_THAT(error("/version", 2), HasSubstr("'version' is 2, this library reads 1"));
  EXPECT_THAT(error("/entries/0/call/tokens", 9), HasSubstr("power of two"));
  EXPECT_THAT(error("/entries/0/call/tokens", 0), HasSubstr("power of two"));
  EXPECT_THAT(error("/entries/0/call/hidden", -1), HasSubstr("whole number"));
  EXPECT_THAT(error("/entries/0/us", -1), HasSubstr("number from 0"));
  EXPECT_THAT(error("/entries/0/us", 0), HasSubstr("'us' is 0"));
  EXPECT_THAT(error("/entries/0/plan_us", 0), HasSubstr("'plan_us' is 0"));
  EXPECT_THAT(error("/entries/0/tactic", {{"fc1_tile", 8}}), HasSubstr("not the fields"));
  EXPECT_THAT(error("/entries/0/tactic", {{"fc1_tile", 8}, {"fc2_tile", 0.5}}),
              HasSubstr("whole number"));
  EXPECT_THAT(error("/entries/1", json::parse(table_text(sample()))["entries"][0]),
              HasSubstr("has one already"));
}

TEST(Table, ADamagedFileIsOneClearError) {
  const std::string good = table_text(sample());
  for (std::size_t size = 0; size + 2 < good.size(); size += 7)
    EXPECT_THAT(usage_error_of([&] { parse_table(good.substr(0, size), "t.json"); }),
                HasSubstr("t.json"));
  std::string twice = good;
  twice.insert(twice.find("\"build\""), "\"build\": \"x\", ");
  EXPECT_THAT(usage_error_of([&] { parse_table(twice, "t.json"); }), HasSubstr("build"));
}

TEST(Table, IsRefusedOnAnotherMachineAndByAnotherBuild) {
  const TuningTable table = sample();
  const auto error = [&](auto change) {
    TuningTable here = sample();
    change(here);
    return usage_error_of([&] { require_made_for(table, here, "t.json"); });
  };
  require_made_for(table, sample(), "t.json");
  EXPECT_THAT(error([](auto& t) { t.machine.cpu_model = "other"; }),
              testing::AllOf(HasSubstr("another machine"), HasSubstr("'a cpu'"),
                             HasSubstr("'other'"), HasSubstr("t.json")));
  EXPECT_THAT(error([](auto& t) { t.machine.isa = "avx2"; }), HasSubstr("another machine"));
  EXPECT_THAT(error([](auto& t) { t.machine.gpu = "b"; }), HasSubstr("another machine"));
  EXPECT_THAT(error([](auto& t) { t.machine.sm = 80; }), HasSubstr("another machine"));
  EXPECT_THAT(error([](auto& t) { t.build = "0.2.0"; }),
              testing::AllOf(HasSubstr("another version, 0.1.0 (abc)"), HasSubstr("0.2.0")));
  EXPECT_THAT(error([](auto& t) { t.fingerprint = "f"; }), HasSubstr("fingerprint"));
}

class TableFile : public testing::Test {
 protected:
  std::string path(const char* name) const {
    return (std::filesystem::path(testing::TempDir()) / name).string();
  }
};

TEST_F(TableFile, IsWrittenWholeAndReplacedByATableOnly) {
  const std::string file = path("tuning.json");
  std::filesystem::remove(file);
  write_table(sample(), file);
  EXPECT_EQ(read_table(file), sample());
  TuningTable more = sample();
  more.put(entry_of(leaf_of("nvfp4"), 8, PanelTactic{}));
  more.put(entry_of(leaf_of("nvfp4"), 16, PanelTactic{}));
  EXPECT_EQ(more.entries.size(), 4u) << "one is replaced, one is new";
  EXPECT_EQ(more.find(more.entries[0].key)->tactic, Tactic(PanelTactic{}));
  write_table(more, file);
  EXPECT_EQ(read_table(file), more);
  const std::string other = path("notes.txt");
  std::ofstream(other) << "do not lose me";
  for (const auto& write : {std::function([&] { write_table(sample(), other); }),
                            std::function([&] { check_table_path(other); })})
    EXPECT_THAT(usage_error_of(write), HasSubstr("not replaced"));
  std::filesystem::remove(file);
  check_table_path(file);
  EXPECT_FALSE(std::filesystem::exists(file)) << "a look changes nothing";
  EXPECT_THAT(usage_error_of([&] { read_table(path("absent.json")); }), HasSubstr("absent.json"));
}

// ---- choices ----

TEST(TacticBook, ServesTheCallsOfItsKeysAlone) {
  const leaves::Leaf& leaf = leaf_of("nvfp4");
  const ops::FfnShape shape = small_shape(leaf);
  const TacticUse want{PanelTactic{4, 2, 8, 32}, TacticOrigin::kFile};
  TacticBook book;
  book.add(sample(), TacticOrigin::kFile, "t.json");
  const TacticList list = book.list_for(leaf, {&shape, 1, 2, CpuIsa::kPortable});
  EXPECT_EQ(list.size(), 1u);
  EXPECT_EQ(*list.find(8), want);
  EXPECT_EQ(*list.find(5), want);
  EXPECT_EQ(list.find(4), nullptr);
  EXPECT_EQ(book.list_for(leaf, {&shape, 1, 3, CpuIsa::kPortable}).size(), 0u) << "3 threads";
  EXPECT_EQ(book.list_for(leaf_of("none"), {&shape, 1, 2, CpuIsa::kPortable}).size(), 0u);
  ops::FfnShape wider = shape;
  wider.inter = 128;
  EXPECT_EQ(book.list_for(leaf, {&wider, 1, 2, CpuIsa::kPortable}).size(), 0u);
}

TEST(TacticBook, TheFirstTableGoesFirstAndThePlanChoosesNothing) {
  const leaves::Leaf& leaf = leaf_of("nvfp4");
  const ops::FfnShape shape = small_shape(leaf);
  const ops::FfnCall call{&shape, 8, 2, CpuIsa::kPortable};
  TuningTable file, shipped, idle;
  file.entries = {entry_of(leaf, 8, PanelTactic{4})};
  shipped.entries = {entry_of(leaf, 8, PanelTactic{2}), entry_of(leaf, 16, PanelTactic{2})};
  ops::FfnCall many = call;
  many.tokens = 32;
  idle.entries = {entry_of(leaf, 32, leaf.ffn->plan(many))};
  TacticBook book;
  book.add(file, TacticOrigin::kFile, "t.json");
  book.add(shipped, TacticOrigin::kShipped, "the shipped table");
  book.add(idle, TacticOrigin::kFile, "idle");
  EXPECT_EQ(book.size(), 4u);
  const TacticList list = book.list_for(leaf, call);
  EXPECT_EQ(*list.find(8), (TacticUse{PanelTactic{4}, TacticOrigin::kFile}));
  EXPECT_EQ(*list.find(16), (TacticUse{PanelTactic{2}, TacticOrigin::kShipped}));
  EXPECT_EQ(list.find(32), nullptr);
}

// The user measured that nothing beats the plan here; a row that ships knows that less well.
TEST(TacticBook, AnEntryThatKeptThePlanClosesItsBucketForLaterTables) {
  const leaves::Leaf& leaf = leaf_of("nvfp4");
  const ops::FfnShape shape = small_shape(leaf);
  const ops::FfnCall call{&shape, 8, 2, CpuIsa::kPortable};
  TuningTable file, shipped;
  file.entries = {entry_of(leaf, 8, leaf.ffn->plan(call))};
  shipped.entries = {entry_of(leaf, 8, PanelTactic{2}), entry_of(leaf, 16, PanelTactic{2})};
  TacticBook both, alone;
  both.add(file, TacticOrigin::kFile, "t.json");
  both.add(shipped, TacticOrigin::kShipped, "the shipped table");
  alone.add(shipped, TacticOrigin::kShipped, "the shipped table");
  EXPECT_NE(alone.list_for(leaf, call).find(8), nullptr) << "without the file it is chosen";
  const TacticList list = both.list_for(leaf, call);
  EXPECT_EQ(list.find(8), nullptr) << "the planner's, at each number of tokens";
  EXPECT_EQ(list.find(5), nullptr);
  EXPECT_EQ(*list.find(16), (TacticUse{PanelTactic{2}, TacticOrigin::kShipped}));
}

TEST(TacticBook, ATacticThatCannotRunIsAnErrorThatNamesItsEntry) {
  const leaves::Leaf& leaf = leaf_of("nvfp4");
  const ops::FfnShape shape = small_shape(leaf);
  TuningTable table;
  table.entries = {entry_of(leaf, 8, PanelTactic{99})};
  TacticBook book;
  book.add(table, TacticOrigin::kFile, "t.json");
  EXPECT_THAT(
      usage_error_of([&] {
        book.list_for(leaf, {&shape, 1, 2, CpuIsa::kPortable});
      }),
      testing::AllOf(HasSubstr("t.json"), HasSubstr("fc1_panels=99"), HasSubstr("160/96/6/3")));
}

// A row of kernels that have changed since is not used, so what it says of them may be out of date.
TEST(ShippedTable, EachRowIsOfARealCallThatCanRunIt) {
  ASSERT_FALSE(all_shipped().empty());
  for (const ShippedRows& gpu : all_shipped())
    for (const ShippedRow& row : gpu.rows) {
      const TableEntry e = row.entry();
      SCOPED_TRACE(to_string(e.key));
      const leaves::Leaf* leaf = leaves::find_leaf_by_id(e.key.leaf);
      ASSERT_NE(leaf, nullptr);
      const ops::FfnShape shape{.hidden = row.hidden,
                                .inter = row.inter,
                                .experts = row.experts,
                                .top_k = row.top_k,
                                .gated = row.gated,
                                .bias = row.bias,
                                .weight_on_input = row.weight_on_input,
                                .weights = leaf->weights,
                                .quant = leaf->activation};
      EXPECT_EQ(key_of(*leaf, {&shape, row.tokens}), e.key);
      if (gpu.kernels == tile_kernels()) leaf->ffn->check_tactic({&shape, row.tokens}, e.tactic);
      EXPECT_NE(e.tactic, e.plan);
      EXPECT_LT(e.us, e.plan_us * (1 - e.noise));
    }
}

ShippedRow made_row(std::int64_t tokens) {
  return {"switchyard.cuda.fused_moe.none",
          2048,
          768,
          128,
          8,
          true,
          false,
          false,
          "bf16 none 1x0",
          "none",
          "bf16",
          tokens,
          {64, 8},
          90,
          100,
          0.01};
}

TEST(ShippedTable, ServesItsGpuAndTheKernelsThatWereMeasured) {
  const ShippedRow rows[] = {made_row(8), made_row(64)}, others[] = {made_row(1)};
  const ShippedRows all[] = {{"gpu a", "0123456789ab", "0.1.0+a", rows},
                             {"gpu b", "0123456789ab", "0.1.0+a", others},
                             {"gpu a", "ba9876543210", "0.1.0+b", others}};
  const auto tokens = [&](const char* gpu, const char* kernels) {
    const Machine here{.cpu_model = "any", .isa = "avx512", .gpu = gpu, .sm = 90};
    std::vector<std::int64_t> out;
    for (const TableEntry& e : select_shipped(all, here, kernels).entries)
      out.push_back(e.key.tokens);
    return out;
  };
  using Tokens = std::vector<std::int64_t>;
  EXPECT_EQ(tokens("gpu a", "0123456789ab"), (Tokens{8, 64}));
  EXPECT_EQ(tokens("gpu b", "0123456789ab"), (Tokens{1}));
  EXPECT_EQ(tokens("gpu a", "ba9876543210"), (Tokens{1}));
  EXPECT_EQ(tokens("gpu a", "another"), Tokens{}) << "kernels that nobody measured";
  EXPECT_EQ(tokens("another", "0123456789ab"), Tokens{});
}

TEST(ShippedTable, SaysWhetherItIsUsed) {
  const ShippedRow rows[] = {made_row(8), made_row(64)};
  const ShippedRows gpu{"gpu a", "0123456789ab", "0.1.0+a", rows};
  EXPECT_EQ(shipped_line(gpu, "0123456789ab"), "2 choices that ship for gpu a are used there");
  EXPECT_EQ(shipped_line(gpu, "ba9876543210"),
            "2 choices that ship for gpu a are not used: measured with kernels 0123456789ab, this "
            "build has ba9876543210");
}

TEST(ShippedTable, IsStaleWhereOnlyOtherKernelsWereMeasured) {
  const ShippedRow rows[] = {made_row(8)};
  const ShippedRows all[] = {{"gpu a", "0123456789ab", "0.1.0+a", rows},
                             {"gpu a", "ba9876543210", "0.1.0+b", rows},
                             {"gpu b", "0123456789ab", "0.1.0+a", {}}};
  EXPECT_EQ(stale_shipped(all, "gpu a", "0123456789ab"), "");
  EXPECT_EQ(stale_shipped(all, "gpu a", "ba9876543210"), "");
  EXPECT_THAT(stale_shipped(all, "gpu a", "another"), HasSubstr("gpu a are not used"));
  EXPECT_EQ(stale_shipped(all, "gpu b", "another"), "") << "nothing ships for it";
  EXPECT_EQ(stale_shipped(all, "another", "another"), "");
}

// ---- keys ----

/// The fields in which two keys differ.
std::set<std::string> changed_fields(const CallKey& a, const CallKey& b) {
  std::set<std::string> out;
  CallKey::each([&](const char* name, auto member) {
    if (a.*member != b.*member) out.insert(name);
  });
  return out;
}

TEST(CallKey, EveryFieldFollowsItsCallAndKeepsChoicesApart) {
  using Fields = std::set<std::string>;
  const leaves::Leaf &leaf = leaf_of("none"), &other = leaf_of("fp8");
  const ops::FfnShape base = small_shape(leaf);
  Fields seen;
  const auto check = [&](const char* field, const leaves::Leaf& asked, auto change) {
    ops::FfnShape shape = base;
    ops::FfnCall call{&shape, 8, 2, CpuIsa::kPortable};
    const CallKey before = key_of(leaf, call);
    change(shape, call);
    const CallKey after = key_of(asked, call);
    EXPECT_EQ(changed_fields(before, after), Fields{field});
    EXPECT_FALSE(before == after) << field;
    seen.insert(field);
    TuningTable table;
    table.entries = {{before, PanelTactic{4}, PanelTactic{}, 90, 100, 0.01, 3, 4}};
    EXPECT_EQ(table.find(after), nullptr) << field;
  };
  check("leaf", other, [](auto&, auto&) {});
  check("hidden", leaf, [](auto& s, auto&) { s.hidden = 192; });
  check("inter", leaf, [](auto& s, auto&) { s.inter = 128; });
  check("experts", leaf, [](auto& s, auto&) { s.experts = 7; });
  check("top_k", leaf, [](auto& s, auto&) { s.top_k = 2; });
  check("gated", leaf, [](auto& s, auto&) { s.gated = false; });
  check("bias", leaf, [](auto& s, auto&) { s.bias = true; });
  check("weight_on_input", leaf, [](auto& s, auto&) { s.weight_on_input = true; });
  check("weights", leaf, [&](auto& s, auto&) { s.weights = other.weights; });
  check("quant", leaf, [&](auto& s, auto&) { s.quant = other.activation; });
  check("dtype", leaf, [](auto& s, auto&) { s.dtype = Dtype::kFp16; });
  check("tokens", leaf, [](auto&, auto& c) { c.tokens = 9; });
  check("threads", leaf, [](auto&, auto& c) { c.threads = 3; });
  Fields all;
  CallKey::each([&](const char* name, auto) { all.insert(name); });
  EXPECT_EQ(seen, all) << "a new field needs its line";
}

// ---- layers ----

/// A small layer, with the choices of the table at `path` where there is one.
MoeLayer layer_of(const char* format, std::int64_t shared, const std::string& path = "") {
  const leaves::Leaf& leaf = leaf_of(format);
  Problem p = test::small_problem(leaf);
  p.num_shared = shared > 0 ? 1 : 0, p.shared_inter = shared;
  BuildOptions options;
  options.tuning = path;
  return test::build_layer(test::make_weights(p, leaf), options, resolve::environment().isa);
}

Trace trace_of(Call& call) {
  Trace trace;
  call.run([&](ForwardArgs& a) { a.trace = &trace; });
  return trace;
}

TEST_F(TableFile, ALayerRunsItsChoicesAndSaysSo) {
  const MoeLayer plain = layer_of("nvfp4", 64);
  TuningTable table = table_here(resolve::environment());
  std::vector<TacticUse> want;
  for (const TunableCall& call : layer::tunable_calls(plain.impl(), 7)) {
    table.put({call.key, call.candidates.back(), call.candidates.front(), 1, 2, 0.01, 3, 4});
    want.push_back({call.candidates.back(), TacticOrigin::kFile});
  }
  ASSERT_EQ(want.size(), 2u);
  const std::string file = path("layer.json");
  write_table(table, file);
  const MoeLayer tuned = layer_of("nvfp4", 64, file);
  for (std::int64_t tokens : {5, 8}) {
    Call one(plain.impl(), tokens), other(tuned.impl(), tokens);
    EXPECT_EQ(one.run(), other.run()) << "no bit changes";
    const Trace trace = trace_of(other);
    EXPECT_EQ(trace.shared, want[0]);
    EXPECT_EQ(trace.experts, want[1]);
    const std::vector<CallTactic> said = tuned.tactics(tokens);
    ASSERT_EQ(said.size(), 2u);
    EXPECT_EQ(said[0], (CallTactic{layer::kSharedCall, want[0]}));
    EXPECT_EQ(said[1], (CallTactic{layer::kExpertsCall, want[1]}));
    const ForwardArgs args = other.args();
    const std::int64_t before = test::allocation_count();
    tuned.forward(args);
    EXPECT_EQ(test::allocation_count() - before, 0) << "a choice is only looked up";
  }
  EXPECT_THAT(usage_error_of([&] { tuned.tactics(-1); }), HasSubstr("tokens = -1"));
  EXPECT_THAT(usage_error_of([&] { tuned.tactics(std::int64_t(1) << 40); }),
              HasSubstr("tokens = 1099511627776"));
  for (std::int64_t tokens : {4, 9}) {
    Call call(tuned.impl(), tokens);
    EXPECT_EQ(trace_of(call).experts->origin, TacticOrigin::kPlanner) << "outside the bucket";
    EXPECT_EQ(trace_of(call).experts->tactic, plain.tactics(tokens)[1].use.tactic);
  }
  table.machine.cpu_model += "?";
  write_table(table, file);
  EXPECT_THAT(usage_error_of([&] { layer_of("nvfp4", 64, file); }), HasSubstr("another machine"));
}

TEST(Tape, RecordsWhatALayerSaysOfItself) {
  const MoeLayer layer = layer_of("w4a16_mxfp4", 64);
  Call call(layer.impl(), 9);
  const std::vector<TunableCall> recorded = test::recorded_calls(call);
  const std::vector<TunableCall> said = layer::tunable_calls(layer.impl(), 9);
  ASSERT_EQ(recorded.size(), said.size());
  for (std::size_t i = 0; i < said.size(); ++i) {
    EXPECT_EQ(recorded[i].name, said[i].name);
    EXPECT_EQ(recorded[i].key, said[i].key);
    EXPECT_EQ(recorded[i].candidates, said[i].candidates);
  }
  EXPECT_TRUE(layer::tunable_calls(layer.impl(), 0).empty());
}

TEST(Tape, IteratesOverTheProduct) {
  const std::vector<TunableCall> calls = {
      {"a", {}, {PanelTactic{1}, PanelTactic{2}}},
      {"b", {}, {PanelTactic{3}, PanelTactic{4}, PanelTactic{5}}}};
  EXPECT_EQ(num_combinations(calls), 6);
  EXPECT_EQ(combination(calls, 0), (std::vector<Tactic>{PanelTactic{1}, PanelTactic{3}}));
  EXPECT_EQ(combination(calls, 3), (std::vector<Tactic>{PanelTactic{2}, PanelTactic{4}}));
  EXPECT_EQ(combination(calls, 5), (std::vector<Tactic>{PanelTactic{2}, PanelTactic{5}}));
  EXPECT_THROW(combination(calls, 6), InternalError);
}

TEST(Tape, AReplayThatDoesNotFitIsAnErrorAndTheNextForwardIsGood) {
  const MoeLayer layer = layer_of("nvfp4", 0), other = layer_of("nvfp4", 64);
  Call call(layer.impl(), 9), more(layer.impl(), 40), shared(other.impl(), 9);
  const std::vector<std::byte> want = call.run();
  const std::vector<TunableCall> calls = test::recorded_calls(call);
  const auto error = [](Call& c, Tape& tape) {
    return usage_error_of([&] { c.run([&](ForwardArgs& a) { a.tape = &tape; }); });
  };
  Tape good(calls, {calls[0].candidates.back()});
  EXPECT_THAT(error(more, good),
              testing::AllOf(HasSubstr("call 1 is the experts"), HasSubstr("up to 64 tokens"),
                             HasSubstr("recorded is"), HasSubstr("up to 16 tokens")));
  EXPECT_THAT(error(shared, good), HasSubstr("call 1 is the shared expert"));
  EXPECT_EQ(call.run([&](ForwardArgs& a) { a.tape = &good; }), want);
  Tape wide(calls, {PanelTactic{.fc1_panels = 99}});
  EXPECT_THAT(error(call, wide), testing::AllOf(HasSubstr("the experts"), HasSubstr("fc1_panels")));
  Tape empty({}, {});
  EXPECT_THAT(error(call, empty), HasSubstr("nothing was recorded"));
  EXPECT_THAT(usage_error_of([&] { Tape(calls, {}); }), HasSubstr("0 tactics for 1"));
  EXPECT_EQ(call.run(), want);
}

// The first call of a forward that failed behind it.
void call_once(Tape& tape, const layer::Layer& l, std::int64_t tokens) {
  tape.next(layer::kSharedCall, *l.options().shared_leaf,
            {&l.shared()->shape, tokens, l.options().pool->size(), l.options().isa});
}

TEST(Tape, AForwardBehindOneThatFailedBeginsAnew) {
  const MoeLayer layer = layer_of("nvfp4", 64);
  Call call(layer.impl(), 9);
  const std::vector<std::byte> want = call.run();
  const auto with = [&](Tape& tape) { return call.run([&](ForwardArgs& a) { a.tape = &tape; }); };
  Tape record;
  call_once(record, layer.impl(), 9);
  EXPECT_EQ(with(record), want);
  ASSERT_EQ(record.calls().size(), 2u) << "those of the forward that ran";
  Tape replay(record.calls(), combination(record.calls(), 0));
  call_once(replay, layer.impl(), 9);
  EXPECT_EQ(with(replay), want);
}

}  // namespace
}  // namespace switchyard::tune
