// SPDX-License-Identifier: Apache-2.0
// What verify tells beside its verdict: each expert by itself, and the stages of one token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "switchyard/api/judge.h"
#include "switchyard/base/check.h"
#include "switchyard/layer/judge.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/written_checkpoint.h"

namespace switchyard {
namespace {

using test::CheckpointEditor;
using test::data_dir;
using test::RawTensor;
using test::RawTensors;
using test::TempDir;
using testing::HasSubstr;

VerifyOptions asked() {
  VerifyOptions o;
  o.build.threads = 2;
  return o;
}

VerifiedLayer details(const std::string& checkpoint, VerifyOptions o = asked()) {
  o.per_expert = true;
  VerifyResult r = verify(checkpoint, o);
  EXPECT_TRUE(r.ok);
  return r.layers.at(0);
}

// Against unquantised activations; the budget itself is absent without a given output.
double limit_of(const std::string& format) {
  if (format == "none" || format == "w4a16_mxfp4") return 5e-3;
  return format == "nvfp4" ? 0.20 : 0.06;
}

TEST(PerExpert, EveryExpertHasRowsAndKeepsTheBudgets) {
  for (const char* name :
       {"mixtral", "qwen3_moe_nvfp4", "gpt_oss_mxfp4", "llama4_text", "deepseek_v3_fp8_block"}) {
    const VerifiedLayer v = details(data_dir(name));
    ASSERT_FALSE(v.experts.empty()) << name;
    for (std::size_t e = 0; e < v.experts.size(); ++e) {
      EXPECT_EQ(v.experts[e].id, std::int64_t(e));
      EXPECT_GE(v.experts[e].rows, 8) << name;
      EXPECT_LE(v.experts[e].rel_l2_oracle, v.budget_rel_l2_oracle) << name << " " << e;
      EXPECT_LE(v.experts[e].rel_l2_unquantised, limit_of(v.format)) << name << " " << e;
      EXPECT_EQ(v.experts[e].note, "") << name << " " << e;
      EXPECT_EQ(v.experts[e].fc2_input_scale.has_value(), v.format == "nvfp4");
    }
  }
}

void scale_tensor(CheckpointEditor& m, const std::string& name, float by) {
  RawTensor& t = m.tensors.at(name);
  t.bytes = test::f32_bytes({test::float_at(t, 0) * by});
}

// The quantisation engineer's walk: one expert's FC2 was left uncalibrated, and is named.
TEST(PerExpert, AnUncalibratedExpertIsNamed) {
  CheckpointEditor m = CheckpointEditor::fixture("qwen3_moe_nvfp4");
  scale_tensor(m, "model.layers.0.mlp.experts.3.down_proj.input_scale", 1e-3f);
  TempDir dir;
  m.write(dir);
  VerifyOptions o = asked();
  o.layer = 0;
  const VerifiedLayer v = details(dir.path(), o);
  for (const VerifiedExpert& e : v.experts) {
    if (e.id == 3) {
      EXPECT_THAT(e.note, HasSubstr("FC2's input scale"));
      EXPECT_THAT(e.note, HasSubstr("it looks uncalibrated"));
      EXPECT_GT(e.rel_l2_unquantised, limit_of(v.format));
      EXPECT_THAT(e.note, HasSubstr("exceeds the format's limit"));
    } else {
      EXPECT_EQ(e.note, "") << e.id;
    }
  }
  scale_tensor(m, "model.layers.0.mlp.experts.3.down_proj.input_scale", 1000);
  scale_tensor(m, "model.layers.0.mlp.experts.5.up_proj.input_scale", 64);
  TempDir again;
  m.write(again);
  const VerifiedLayer w = details(again.path(), o);
  EXPECT_THAT(w.experts.at(5).note, HasSubstr("FC1's input scale"));
  EXPECT_THAT(w.experts.at(3).note, testing::Not(HasSubstr("FC2's")));
}

TEST(PerExpert, WithoutItNothingIsComputed) {
  EXPECT_TRUE(verify(data_dir("mixtral"), asked()).layers.at(0).experts.empty());
}

std::vector<float> floats(const RawTensors& t, const std::string& name) {
  std::vector<float> out;
  const RawTensor& raw = t.at(name);
  for (std::size_t i = 0; i < raw.bytes.size() / 4; ++i)
    out.push_back(test::float_at(raw, std::int64_t(i)));
  return out;
}

std::vector<std::int32_t> ints(const RawTensors& t, const std::string& name) {
  const RawTensor& raw = t.at(name);
  EXPECT_EQ(raw.dtype, "I32");
  std::vector<std::int32_t> out(raw.bytes.size() / 4);
  std::memcpy(out.data(), raw.bytes.data(), raw.bytes.size());
  return out;
}

/// The stages of layer `prefix` that the file holds twice, the oracle's beside the leaf's.
std::set<std::string> pairs_of(const RawTensors& t, const std::string& prefix) {
  std::set<std::string> out;
  const std::string start = prefix + "oracle.";
  for (const auto& [name, tensor] : t)
    if (name.starts_with(start)) out.insert(name.substr(start.size()));
  return out;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  const std::vector<double> y(a.begin(), a.end()), r(b.begin(), b.end());
  return layer::rel_l2(y.data(), r.data(), y.size());
}

/// A dumped layer: what it has, and the most that a stage of it may differ from the oracle's.
struct DumpCase {
  std::string name;
  std::int64_t layer = 0;
  bool gated = true, shared = false, quantises = false, latent = false;
  bool weighs_input = false;
  bool f32 = false;  // nothing between input and output is rounded
  std::set<std::string> pairs() const {
    std::set<std::string> out = {"ids", "x_quantised", "fc1_up", "fc2_input", "rows", "out"};
    if (gated) out.insert("fc1_gate");
    if (shared) out.insert("shared_fc2_input");
    return out;
  }
  double most(const std::string& stage, double of_out) const {
    if (stage == "x_quantised") return quantises && !f32 ? 1e-6 : 0;  // the input is exact
    if (stage == "out") return of_out;
    return f32 || stage.starts_with("fc1_") ? 1e-5 : 5e-3;  // FC1: one GEMM from its own input
  }
};

void expect_stages_agree(const RawTensors& t, const std::string& prefix, const DumpCase& c,
                         double of_out) {
  for (const std::string& stage : c.pairs()) {
    if (stage == "ids") continue;
    const std::vector<float> oracle = floats(t, cat(prefix, "oracle.", stage));
    std::vector<float> leaf = floats(t, prefix + stage);
    const double most = c.most(stage, of_out);
    EXPECT_LE(distance(leaf, oracle), most) << stage;
    // Sums in fp32 are not those in double, where no rounding hides it: neither is a copy.
    if (c.f32 && stage != "x_quantised") {
      EXPECT_GT(distance(leaf, oracle), 0) << stage;
    }
    float& largest = *std::ranges::max_element(leaf, {}, [](float v) { return std::abs(v); });
    largest = -largest;
    EXPECT_GT(distance(leaf, oracle), 2 * most) << stage << ": one value of it is another";
  }
}

void expect_dump(const std::string& path, const DumpCase& c) {
  SCOPED_TRACE(c.name + (c.f32 ? " in f32" : ""));
  TempDir dir;
  VerifyOptions o = asked();
  if (c.f32) o.build.activations = ActivationMode::kF32;
  o.dump_stages = dir.path() + "/stages.safetensors";
  o.dump_row = 5;
  const VerifyResult r = verify(path, o);
  ASSERT_FALSE(r.layers.empty());
  EXPECT_EQ(r.layers[0].layer, c.layer);
  const RawTensors t = test::parse_safetensors(o.dump_stages);
  const std::string p = "layer" + std::to_string(c.layer) + ".";
  EXPECT_EQ(pairs_of(t, p), c.pairs());
  EXPECT_EQ(t.count(p + "fc1_gate"), c.gated ? 1u : 0u);
  EXPECT_EQ(t.count(p + "shared_fc2_input"), c.shared ? 1u : 0u);
  EXPECT_EQ(t.count(p + "latent"), c.latent ? 1u : 0u);
  EXPECT_EQ(ints(t, p + "ids"), ints(t, p + "oracle.ids"));
  const std::size_t k = ints(t, p + "ids").size();
  EXPECT_EQ(t.at(p + "rows").shape[0], std::int64_t(k));
  EXPECT_EQ(floats(t, p + "weights").size(), k);
  expect_stages_agree(t, p, c, r.layers[0].budget_rel_l2_oracle);
  if (c.f32) {  // what the first expert reads
    const std::vector<float> x = floats(t, p + "x_quantised");
    std::vector<float> read = floats(t, p + (c.latent ? "latent" : "hidden"));
    if (c.weighs_input)
      for (float& v : read) v *= floats(t, p + "weights").at(0);
    EXPECT_TRUE(x.size() == k * read.size() && std::equal(read.begin(), read.end(), x.begin()));
  }
  // Another row is another token.
  o.dump_row = 6;
  verify(path, o);
  const RawTensors u = test::parse_safetensors(o.dump_stages);
  EXPECT_NE(u.at(p + "hidden").bytes, t.at(p + "hidden").bytes);
  EXPECT_NE(u.at(p + "out").bytes, t.at(p + "out").bytes);
}

TEST(DumpStages, HoldEveryStageOfTheTokenAndAgreeWithTheOracle) {
  for (const DumpCase& c :
       {DumpCase{.name = "mixtral"}, DumpCase{.name = "qwen3_moe_nvfp4", .quantises = true},
        DumpCase{.name = "deepseek_v3_fp8_block", .shared = true, .quantises = true},
        DumpCase{.name = "nemotron_h", .gated = false, .shared = true},
        DumpCase{.name = "llama4_text", .shared = true, .weighs_input = true}})
    for (bool f32 : {false, true}) {
      DumpCase in_mode = c;
      in_mode.f32 = f32;
      expect_dump(data_dir(c.name), in_mode);
    }
}

// The experts of a latent layer read what the down-projection gives, in its width.
TEST(DumpStages, HoldTheLatentRowOfALatentLayer) {
  for (const DumpCase& c : {DumpCase{.name = "kimi_k3", .layer = 1, .shared = true, .latent = true},
                            DumpCase{.name = "nemotron_h_latent",
                            .layer = 1,
                            .gated = false,
                            .shared = true,
                            .latent = true}}) {
    const auto spec = std::ranges::find(test::written_specs(), c.name, &test::WrittenSpec::name);
    ASSERT_NE(spec, test::written_specs().end()) << c.name;
    TempDir dir;
    test::make_checkpoint(*spec).write(dir);
    for (bool f32 : {false, true}) {
      DumpCase in_mode = c;
      in_mode.f32 = f32;
      expect_dump(dir.path(), in_mode);
    }
  }
}

TEST(DumpStages, APathThatCannotBeWrittenIsRefusedBeforeTheWork) {
  TempDir dir;
  VerifyOptions o = asked();
  o.build.progress = [](std::int64_t, std::int64_t) { ADD_FAILURE() << "experts were packed"; };
  auto refusal = [&](const std::string& path) -> std::string {
    o.dump_stages = path;
    try {
      verify(data_dir("mixtral"), o);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("/no/such/stages"), HasSubstr("/no/such/stages: cannot be written"));
  EXPECT_THAT(refusal(dir.path()), HasSubstr("no regular file"));
  const std::string target = dir.write("target", "older"), link = dir.path() + "/link";
  std::filesystem::create_symlink(target, link);
  EXPECT_THAT(refusal(link), HasSubstr("it is a link"));
  EXPECT_EQ(test::slurp(target), "older");
}

TEST(DumpStages, NeverReplaceWhatIsRead) {
  TempDir dir;
  const std::string copy = dir.path() + "/mixtral", io = dir.path() + "/io.safetensors";
  std::filesystem::copy(data_dir("mixtral"), copy);
  std::filesystem::copy(copy + "/moe_io.safetensors", io);
  VerifyOptions o = asked();
  o.io = io;
  auto refused = [&](const std::string& path) {
    o.dump_stages = path;
    const std::string before = std::filesystem::exists(path) ? test::slurp(path) : "";
    EXPECT_THAT(test::usage_error_of([&] { verify(copy, o); }), HasSubstr(path + ": "));
    EXPECT_EQ(std::filesystem::exists(path) ? test::slurp(path) : "", before);
  };
  refused(copy + "/model.safetensors");
  refused(copy + "/config.json");
  refused(copy + "/new.safetensors");
  refused(io);
  o.dump_stages = dir.path() + "/stages.safetensors";
  EXPECT_TRUE(verify(copy, o).ok);
}

std::set<std::string> names_in(const TempDir& dir) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    out.insert(entry.path().filename());
  return out;
}

// Only an earlier dump, or the empty file of mktemp, gives way.
TEST(DumpStages, ReplaceNothingButAnEarlierDump) {
  TempDir dir;
  const std::string weights = dir.path() + "/other.safetensors";
  std::filesystem::copy(data_dir("qwen3_moe") + "/model.safetensors", weights);
  const std::string mine = dir.path() + "/stages.safetensors";
  const std::string download = dir.write("stages.safetensors.part", "half of a download");
  VerifyOptions o = asked();
  for (const std::string& path : {weights, dir.write("notes.txt", "measured")}) {
    const std::string before = test::slurp(path);
    o.dump_stages = path;
    EXPECT_THAT(test::usage_error_of([&] { verify(data_dir("mixtral"), o); }),
                testing::AllOf(HasSubstr(path + ": is there and is no dump of stages ("),
                               testing::Not(HasSubstr("(" + path)), HasSubstr("not replaced")));
    EXPECT_EQ(test::slurp(path), before);
  }
  o.dump_stages = dir.write("empty", "");
  EXPECT_TRUE(verify(data_dir("mixtral"), o).ok);
  o.dump_stages = mine;
  EXPECT_TRUE(verify(data_dir("mixtral"), o).ok);
  EXPECT_TRUE(verify(data_dir("qwen3_moe"), o).ok);
  EXPECT_EQ(test::slurp(download), "half of a download");
  EXPECT_EQ(names_in(dir),
            (std::set<std::string>{"empty", "notes.txt", "other.safetensors", "stages.safetensors",
                                   "stages.safetensors.part"}));
}

// A run that fails leaves the file of an earlier one, and no half of its own.
TEST(DumpStages, TheFileAppearsWhole) {
  TempDir dir;
  VerifyOptions o = asked();
  o.dump_stages = dir.path() + "/stages.safetensors";
  verify(data_dir("qwen3_moe"), o);
  const std::string older = test::slurp(o.dump_stages);
  o.dump_row = 99;
  EXPECT_THROW(verify(data_dir("mixtral"), o), UsageError);
  EXPECT_EQ(test::slurp(o.dump_stages), older);
  o.dump_row = 0;
  verify(data_dir("mixtral"), o);
  EXPECT_NE(test::slurp(o.dump_stages), older);
  EXPECT_EQ(test::parse_safetensors(o.dump_stages).count("layer0.out"), 1u);
  EXPECT_EQ(names_in(dir), std::set<std::string>{"stages.safetensors"});
}

// Routed experts without an activation quantiser beside a shared one with: the wider limit holds,
// is said to, and still notices what is wrong.
TEST(OutputLimit, OfACoarserSharedExpertIsNamed) {
  const auto spec = std::ranges::find(test::written_specs(), test::Coding::kMxfp4Native,
                                      &test::WrittenSpec::coding);
  ASSERT_NE(spec, test::written_specs().end());
  TempDir dir, wrong;
  test::WrittenCheckpoint written = test::make_checkpoint(*spec);
  written.write(dir);
  for (float& v : written.io.output) v *= 1.08f;  // beyond the wider limit, and not by much
  written.write(wrong);
  VerifyOptions o = asked();
  o.io = dir.path() + "/moe_io.safetensors";
  const VerifiedLayer v = verify(dir.path(), o).layers.at(0);
  EXPECT_TRUE(v.ok);
  EXPECT_EQ(v.budget_rel_l2, 0.06);
  EXPECT_THAT(v.notices, testing::Contains(HasSubstr("the output's limit 0.06 is that of the "
                                                     "shared expert's fp8_1x128_ue8m0")));
  o.io = wrong.path() + "/moe_io.safetensors";
  const VerifyResult control = verify(wrong.path(), o);
  EXPECT_FALSE(control.ok);
  EXPECT_GT(*control.layers.at(0).rel_l2, 0.06);
  o = asked();
  o.io = data_dir("deepseek_v3_fp8_block") + "/moe_io.safetensors";
  EXPECT_THAT(verify(data_dir("deepseek_v3_fp8_block"), o).layers.at(0).notices,
              testing::Not(testing::Contains(HasSubstr("the output's limit"))));
}

TEST(DumpStages, WithoutARowTheWorstOneIsTaken) {
  TempDir dir;
  VerifyOptions o = asked();
  o.dump_stages = dir.path() + "/stages.safetensors";
  const VerifiedLayer v = verify(data_dir("qwen3_moe_nvfp4"), o).layers.at(0);
  EXPECT_GE(v.worst_row_rel_l2, v.rel_l2_oracle) << "the worst row is no better than all of them";
  const RawTensors worst = test::parse_safetensors(o.dump_stages);
  o.dump_row = v.worst_row;
  verify(data_dir("qwen3_moe_nvfp4"), o);
  const RawTensors same = test::parse_safetensors(o.dump_stages);
  EXPECT_EQ(same.at("layer0.hidden").bytes, worst.at("layer0.hidden").bytes);
  EXPECT_EQ(same.at("layer0.out").bytes, worst.at("layer0.out").bytes);
}

// ---- values that no leaf can hold, and scales that let nothing through ----

const std::string kExperts = "model.layers.0.mlp.experts.";

TEST(ExtremeScales, WhatOverflowsIsTheCheckpointsOwn) {
  CheckpointEditor m = CheckpointEditor::fixture("gpt_oss_mxfp4");
  TempDir dir;
  RawTensor& scales = m.tensors.at(kExperts + "gate_up_proj_scales");  // [8, 384, 8]
  std::fill_n(scales.bytes.begin() + 3 * 384 * 8, 384 * 8, '\xfe');    // 2^127
  m.write(dir);
  const VerifyResult r = verify(dir.path(), asked());
  EXPECT_FALSE(r.ok);
  EXPECT_THAT(r.layers.at(0).notices,
              testing::Contains(testing::AllOf(HasSubstr("the checkpoint's own values overflow"),
                                               HasSubstr("1.70141e+38, of expert 3, tensor '" +
                                                         kExperts + "gate_up_proj_scales'"))));
  EXPECT_THAT(verify(data_dir("gpt_oss_mxfp4"), asked()).layers.at(0).notices,
              testing::Not(testing::Contains(HasSubstr("overflow"))));
}

TEST(ExtremeScales, WeightsThatOverflowAreNamedWithoutScales) {
  CheckpointEditor m = CheckpointEditor::fixture("mixtral");
  for (auto& [name, t] : m.tensors)
    if (name.ends_with(".w2.weight"))
      for (std::size_t i = 0; i < t.bytes.size(); i += 2)
        t.bytes.replace(i, 2, "\x61\x7f");  // 3e38
  TempDir dir;
  m.write(dir);
  const auto says =
      testing::Contains(testing::EndsWith("leaves the range of fp32 or of the output"));
  const VerifyResult r = verify(dir.path(), asked());
  EXPECT_FALSE(r.ok);
  EXPECT_THAT(r.layers.at(0).notices, says);
  RunOptions o;
  o.checkpoint = dir.path();
  o.tokens = 4, o.build.threads = 2;
  const RunResult ran = run(o);
  EXPECT_FALSE(ran.ok);
  EXPECT_THAT(ran.measurements.at(0).notices, says);
}

TEST(ExtremeScales, WhatIsSilencedIsNoticed) {
  const auto notices_with = [](const std::string& projection, float value) {
    CheckpointEditor m = CheckpointEditor::fixture("qwen3_moe_nvfp4");
    for (auto& [name, t] : m.tensors)
      if (name.ends_with(projection)) t.bytes = test::f32_bytes({value});
    TempDir dir;
    m.write(dir);
    return verify(dir.path(), asked()).layers.at(0).notices;
  };
  const auto zero = HasSubstr("the output of every token is 0");
  EXPECT_THAT(
      notices_with(".down_proj.weight_scale_2", 0),
      testing::IsSupersetOf({zero, HasSubstr("expert 0, tensor '" + kExperts +
                                             "0.down_proj.weight_scale_2': a global scale of 0")}));
  EXPECT_THAT(notices_with(".down_proj.input_scale", 1e30F),
              testing::IsSupersetOf(
                  {zero, HasSubstr("expert 0, tensor '" + kExperts +
                                   "0.down_proj.input_scale': an input scale of 1e+30")}));
  EXPECT_THAT(notices_with(".down_proj.input_scale", 1),
              testing::Not(testing::Contains(
                  testing::AnyOf(zero, HasSubstr("input scale"), HasSubstr("global scale")))));
}

TEST(VerifyTokens, AreNotIgnoredBesideAFile) {
  VerifyOptions o = asked();
  o.io = data_dir("mixtral") + "/moe_io.safetensors";
  o.tokens = 3;
  EXPECT_THAT(test::usage_error_of([&] { verify(data_dir("mixtral"), o); }),
              HasSubstr("both given"));
  o.tokens.reset();
  EXPECT_TRUE(verify(data_dir("mixtral"), o).ok);
}

}  // namespace
}  // namespace switchyard
