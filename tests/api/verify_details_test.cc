// SPDX-License-Identifier: Apache-2.0
// What verify tells beside its verdict: each expert by itself, and the stages of one token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "switchyard/api/judge.h"
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

double distance(const RawTensors& t, const std::string& prefix, const std::string& stage) {
  const std::vector<float> a = floats(t, prefix + stage), b = floats(t, prefix + "oracle." + stage);
  EXPECT_EQ(a.size(), b.size()) << stage;
  const std::vector<double> y(a.begin(), a.end()), r(b.begin(), b.end());
  return layer::rel_l2(y.data(), r.data(), y.size());
}

struct DumpCase {
  const char* name;
  std::int64_t layer;
  bool gated, shared, quantises;
};

TEST(DumpStages, HoldEveryStageOfTheTokenAndAgreeWithTheOracle) {
  for (const DumpCase& c : {DumpCase{"mixtral", 0, true, false, false},
                            DumpCase{"qwen3_moe_nvfp4", 0, true, false, true},
                            DumpCase{"deepseek_v3_fp8_block", 1, true, true, true},
                            DumpCase{"nemotron_h", 1, false, true, false},
                            DumpCase{"llama4_text", 0, true, true, false}}) {
    SCOPED_TRACE(c.name);
    TempDir dir;
    VerifyOptions o = asked();
    o.dump_stages = dir.path() + "/stages.safetensors";
    o.dump_row = 5;
    const VerifyResult r = verify(data_dir(c.name), o);
    ASSERT_FALSE(r.layers.empty());
    const RawTensors t = test::parse_safetensors(o.dump_stages);
    const std::string p = "layer" + std::to_string(r.layers[0].layer) + ".";
    EXPECT_EQ(t.count(p + "fc1_gate"), c.gated ? 1u : 0u);
    EXPECT_EQ(t.count(p + "shared_fc2_input"), c.shared ? 1u : 0u);
    EXPECT_EQ(t.count(p + "latent"), 0u);
    EXPECT_EQ(ints(t, p + "ids"), ints(t, p + "oracle.ids"));
    const std::size_t k = ints(t, p + "ids").size();
    EXPECT_EQ(t.at(p + "rows").shape[0], std::int64_t(k));
    EXPECT_EQ(floats(t, p + "weights").size(), k);
    for (const char* stage : {"x_quantised", "fc1_up", "rows"})
      EXPECT_LE(distance(t, p, stage), 5e-3) << stage;
    EXPECT_LE(distance(t, p, "x_quantised"), c.quantises ? 1e-6 : 0) << "the input is exact";
    EXPECT_LE(distance(t, p, "fc1_up"), 1e-5) << "one GEMM from its own input";
    EXPECT_LE(distance(t, p, "out"), r.layers[0].budget_rel_l2_oracle);
    EXPECT_GT(layer::rel_l2(std::vector<double>(k, 1).data(), std::vector<double>(k, 2).data(), k),
              1e-2);
    // Another row is another token.
    o.dump_row = 6;
    verify(data_dir(c.name), o);
    const RawTensors u = test::parse_safetensors(o.dump_stages);
    EXPECT_NE(u.at(p + "hidden").bytes, t.at(p + "hidden").bytes);
    EXPECT_NE(u.at(p + "out").bytes, t.at(p + "out").bytes);
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

// A run that fails leaves the file of an earlier one, and no half of its own.
TEST(DumpStages, TheFileAppearsWhole) {
  TempDir dir;
  VerifyOptions o = asked();
  o.dump_stages = dir.write("stages.safetensors", "older");
  o.dump_row = 99;
  EXPECT_THROW(verify(data_dir("mixtral"), o), UsageError);
  EXPECT_EQ(test::slurp(o.dump_stages), "older");
  o.dump_row = 0;
  verify(data_dir("mixtral"), o);
  EXPECT_EQ(test::parse_safetensors(o.dump_stages).count("layer0.out"), 1u);
  EXPECT_FALSE(std::filesystem::exists(o.dump_stages + ".part"));
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
