// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "switchyard/checkpoint/inspect.h"
#include "switchyard/checkpoint/layer_list.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/module_matcher.h"
#include "switchyard/checkpoint/moe_io.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard::checkpoint {
namespace {

using formats::ActivationQuant;
using nlohmann::json;
using test::CheckpointEditor;
using test::data_dir;
using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModuleMatcher, GlobsAreAnchored) {
  EXPECT_TRUE(glob_match("model.layers.*.mlp.gate", "model.layers.12.mlp.gate"));
  EXPECT_FALSE(glob_match("model.layers.*.mlp.gate", "model.layers.12.mlp.gate_proj"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a*b*c", "axxbyybzc"));
  EXPECT_FALSE(glob_match("a*b", "xab"));
  EXPECT_FALSE(glob_match("", "a"));
}

TEST(ModuleMatcher, AncestorsCountAndIndicesAreWhole) {
  ModuleMatcher m;
  m.add("model.layers.1", "one");
  m.add("model.layers.1.mlp.experts.3.up_proj", "deep");
  EXPECT_EQ(*m.match("model.layers.1.mlp.experts.0.up_proj"), "one");
  EXPECT_EQ(*m.match("model.layers.1.mlp.experts.3.up_proj"), "deep");
  EXPECT_EQ(m.match("model.layers.11.mlp.experts.0.up_proj"), nullptr);
  EXPECT_EQ(m.match("model.layers"), nullptr);
  m.add("mlp.gate", "suffix");
  EXPECT_EQ(m.match("model.layers.2.mlp.gate"), nullptr);
  ModuleMatcher s(true);
  s.add("mlp.gate", "suffix");
  s.add("shared_experts", "shared");
  EXPECT_EQ(*s.match("model.layers.2.mlp.gate"), "suffix");
  EXPECT_EQ(*s.match("model.layers.2.mlp.shared_experts.up_proj"), "shared");
  EXPECT_EQ(s.match("model.layers.2.mlp.experts.0.gate_proj"), nullptr);
  EXPECT_EQ(s.match("model.layers.2.xmlp.gate"), nullptr);
}

TEST(ModulePattern, MatchesAsPythonsReMatchDoes) {
  struct Case {
    const char *expression, *text;
    bool matches;
  };
  const Case cases[] = {
      {".*mlp\\.gate$", "model.layers.3.mlp.gate", true},
      {".*mlp\\.gate$", "model.layers.3.mlp.gate_proj", false},
      {"mlp", "mlp.gate", true},
      {"mlp", "model.mlp", false},
      {"^model\\.layers\\.\\d+\\.", "model.layers.12.mlp", true},
      {"^model\\.layers\\.\\d+\\.", "model.layers.x.mlp", false},
      {".*experts\\.\\d+\\.w[123]$", "b.experts.10.w2", true},
      {".*experts\\.\\d+\\.w[123]$", "b.experts.10.w4", false},
      {".*(gate|up|down)_proj", "experts.0.up_proj", true},
      {".*(?:gate|up)_proj$", "experts.0.down_proj", false},
      {"a?b+c*", "bbx", true},
      {"a?b+c*$", "abbcc", true},
      {"[^.]*\\.x", "ab.x", true},
      {"[^.]*\\.x", "a.b.x", false},
      {"(a|b|)*c", "ababc", true},
      {"[a-c\\d]+$", "a1c", true},
      {"[]]", "]", true},
      {"", "anything", true},
  };
  for (const Case& c : cases)
    EXPECT_EQ(ModulePattern(c.expression, "here").match(c.text), c.matches)
        << c.expression << " on " << c.text;
  for (const char* bad : {"(", ")", "[a", "*a", "a{2}", "(?=a)", "(?!a)", "(?P<n>a)", "\\", "\\1",
                          "[z-a]", "\\bword"})
    EXPECT_THAT(test::usage_error_of([&] { ModulePattern(bad, "here"); }), HasSubstr("not served"))
        << bad;
}

TEST(ModulePattern, ItsTimeDoesNotExplode) {
  const std::string text(300, 'a');
  EXPECT_FALSE(ModulePattern("(a*)*(a*)*(a|a)*b", "here").match(text));
  EXPECT_NE(test::usage_error_of([&] { ModulePattern(std::string(60, '('), "here"); }), "");
  EXPECT_NE(test::usage_error_of([&] { ModulePattern(std::string(2001, 'a'), "here"); }), "");
}

/// The NVFP4 fixture with a copy of its layer as layer `to`; `bf16` gives the copy plain experts.
void add_layer(CheckpointEditor& m, const std::string& to, bool bf16) {
  const std::string from = "model.layers.0.";
  test::RawTensors copies;
  for (const auto& [name, t] : m.tensors) {
    if (name.rfind(from, 0) != 0) continue;
    bool expert = name.find(".experts.") != std::string::npos;
    if (bf16 && expert && !name.ends_with(".weight")) continue;
    test::RawTensor copy = t;
    if (bf16 && expert) {
      copy.dtype = "BF16";
      copy.shape[1] *= 2;
      copy.bytes.assign(std::size_t(copy.shape[0] * copy.shape[1] * 2), '\x3c');
    }
    copies[to + name.substr(from.size())] = copy;
  }
  m.tensors.insert(copies.begin(), copies.end());
}

CheckpointEditor nvfp4_with_bf16_layer() {
  CheckpointEditor m = CheckpointEditor::fixture("qwen3_moe_nvfp4");
  add_layer(m, "model.layers.1.", true);
  add_layer(m, "model.layers.2.", false);
  m.config["num_hidden_layers"] = 3;
  return m;
}

void expect_mixed(const std::string& path) {
  Checkpoint c = Checkpoint::open(path);
  std::vector<std::string> formats;
  for (const LayerInfo& l : c.layers()) formats.push_back(l.format);
  EXPECT_THAT(formats, ElementsAre("nvfp4", "none", "nvfp4"));
  LayerWeights quantised = c.layer(2), plain = c.layer(1);
  EXPECT_EQ(quantised.problem.format, "nvfp4");
  EXPECT_EQ(quantised.activation_quant, ActivationQuant::kNvfp4);
  EXPECT_TRUE(quantised.expert(4).up.input_scale.has_value());
  EXPECT_EQ(plain.problem.format, "none");
  EXPECT_EQ(plain.activation_quant, ActivationQuant::kNone);
  EXPECT_EQ(plain.layout.element, formats::Element::kBf16);
  EXPECT_EQ(plain.expert(4).up.value(3, 5), bf16_to_float(0x3c3c));
}

TEST(Layers, EachResolvesByItsOwnFormat) {
  for (const char* pattern : {"model.layers.1.*", "model.layers.1.mlp.experts*", "model.layers.1",
                              "model.layers.1.mlp", "*.1.mlp.experts.*"}) {
    SCOPED_TRACE(pattern);
    CheckpointEditor m = nvfp4_with_bf16_layer();
    m.config["quantization_config"]["ignore"].push_back(pattern);
    TempDir dir;
    m.write(dir);
    expect_mixed(dir.path());
  }
}

TEST(Layers, MixedPrecisionResolvesPerLayer) {
  for (const char* nvfp4 : {"NVFP4", "NVFP4_AWQ"}) {
    CheckpointEditor m = nvfp4_with_bf16_layer();
    m.config["quantization_config"] = {
        {"quant_method", "modelopt"},
        {"quant_algo", "MIXED_PRECISION"},
        {"quantized_layers",
         {{"model.layers.0.mlp.experts", {{"quant_algo", nvfp4}, {"group_size", 16}}},
          {"model.layers.0.self_attn.q_proj", {{"quant_algo", "SOMETHING_ELSE"}}},
          {"model.layers.2.mlp.experts.*", {{"quant_algo", nvfp4}}}}}};
    TempDir dir;
    m.write(dir);
    expect_mixed(dir.path());
    EXPECT_EQ(Checkpoint::open(dir.path()).schema(), "modelopt: MIXED_PRECISION");
  }
}

TEST(Layers, HfQuantConfigAloneAndInConflict) {
  CheckpointEditor m = CheckpointEditor::fixture("qwen3_moe_nvfp4");
  json block = m.config["quantization_config"];
  json hf = {{"producer", {{"name", "modelopt"}}},
             {"quantization",
              {{"quant_algo", "NVFP4"}, {"group_size", 16}, {"exclude_modules", block["ignore"]}}}};
  TempDir dir;
  m.write(dir);
  dir.write("hf_quant_config.json", hf.dump());
  EXPECT_TRUE(Checkpoint::open(dir.path()).notices().empty());
  hf["quantization"]["quant_algo"] = "FP8";
  dir.write("hf_quant_config.json", hf.dump());
  Checkpoint conflict = Checkpoint::open(dir.path());
  EXPECT_EQ(conflict.layers()[0].format, "nvfp4");
  ASSERT_EQ(conflict.notices().size(), 1u);
  EXPECT_THAT(conflict.notices()[0], HasSubstr("config.json"));
  hf["quantization"]["quant_algo"] = "NVFP4";
  dir.write("hf_quant_config.json", hf.dump());
  m.config.erase("quantization_config");
  dir.write("config.json", m.config.dump());
  EXPECT_NO_THROW(Checkpoint::open(dir.path()).layer(0));
  EXPECT_EQ(Checkpoint::open(dir.path()).schema(), "modelopt: NVFP4");
}

TEST(Layers, WeightOnlyNvfp4AsksForBf16Activations) {
  CheckpointEditor m = CheckpointEditor::fixture("qwen3_moe_nvfp4");
  m.config["quantization_config"]["quant_algo"] = "W4A16_NVFP4";
  TempDir dir;
  m.write(dir);
  LayerWeights l = Checkpoint::open(dir.path()).layer(0);
  EXPECT_EQ(l.problem.format, "nvfp4");
  EXPECT_EQ(l.problem.activations, ActivationMode::kBf16);
  EXPECT_EQ(l.activation_quant, ActivationQuant::kNone);
  EXPECT_FALSE(l.expert(0).up.input_scale.has_value());
  ASSERT_EQ(l.notices.size(), 1u);
  EXPECT_THAT(l.notices[0], HasSubstr("48 input_scale"));
}

/// The fp8 fixture with one fp32 scale per tensor, and with static scales when asked.
CheckpointEditor per_tensor_fp8(bool with_input_scale) {
  CheckpointEditor m = CheckpointEditor::fixture("deepseek_v3_fp8_block");
  test::RawTensors out;
  float scale = 0.5f;
  for (auto& [name, t] : m.tensors) {
    if (!name.ends_with(".weight_scale_inv")) {
      out[name] = t;
      continue;
    }
    std::string base = name.substr(0, name.size() - 4);
    out[base] = {"F32", {}, test::f32_bytes({scale})};
    std::string input = base.substr(0, base.rfind('.')) + ".input_scale";
    if (with_input_scale) out[input] = {"F32", {1}, test::f32_bytes({2 * scale})};
    scale += 0.25f;
  }
  m.tensors = std::move(out);
  return m;
}

TEST(Layers, PerTensorFp8InItsThreeDeclarations) {
  struct Case {
    json declaration;
    bool input_scale;
    ActivationQuant quant;
  };
  const Case cases[] = {
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}, true, ActivationQuant::kFp8Tensor},
      {{{"quant_method", "fp8"}, {"activation_scheme", "static"}},
       true,
       ActivationQuant::kFp8Tensor},
      {{{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}},
       false,
       ActivationQuant::kFp8Token},
  };
  for (const Case& c : cases) {
    CheckpointEditor m = per_tensor_fp8(c.input_scale);
    m.config["quantization_config"] = c.declaration;
    TempDir dir;
    m.write(dir);
    LayerWeights l = Checkpoint::open(dir.path()).layer(0);
    EXPECT_EQ(l.problem.format, "fp8");
    EXPECT_EQ(l.activation_quant, c.quant);
    for (std::int64_t e : {0, 15}) {
      ExpertWeights w = l.expert(e);
      w.up.check("up");
      std::string base = "model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.";
      float scale = test::float_at(m.tensors.at(base + "weight_scale"), 0);
      float stored;
      std::memcpy(&stored, w.up.scales.data(), 4);
      EXPECT_EQ(stored, scale);
      EXPECT_EQ(w.up.input_scale.has_value(), c.input_scale);
      if (c.input_scale) {
        EXPECT_EQ(*w.up.input_scale, 2 * scale);
      }
    }
  }
  CheckpointEditor m = per_tensor_fp8(false);
  m.config["quantization_config"] = cases[0].declaration;
  TempDir dir;
  m.write(dir);
  EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(dir.path()).layer(0); }),
              HasSubstr("input_scale"));
}

TEST(Layers, Ue8m0BlockScalesWidenToFp32) {
  CheckpointEditor m = CheckpointEditor::fixture("deepseek_v3_fp8_block");
  m.config["quantization_config"]["scale_fmt"] = "ue8m0";
  for (auto& [name, t] : m.tensors)
    if (name.ends_with("up_proj.weight_scale_inv")) t = {"F8_E8M0", t.shape, "\x7f\x80\x70\x01"};
  for (auto& [name, t] : m.tensors)
    if (name.ends_with("down_proj.weight_scale_inv"))
      t = {"BF16", t.shape, std::string("\x80\x3f\x00\x40\x80\x3e\x80\x3f", 8)};
  TempDir dir;
  m.write(dir);
  LayerWeights l = Checkpoint::open(dir.path()).layer(0);
  EXPECT_EQ(l.activation_quant, ActivationQuant::kFp8Block128Ue8m0);
  EXPECT_TRUE(l.layout.power_of_two);
  ASSERT_TRUE(l.shared.has_value());
  EXPECT_EQ(l.shared->activation_quant, ActivationQuant::kFp8Block128Ue8m0);
  ExpertWeights w = l.expert(1);
  ASSERT_EQ(w.up.scales.size(), 16u);
  float up[4], down[4];
  std::memcpy(up, w.up.scales.data(), 16);
  std::memcpy(down, w.down.scales.data(), 16);
  EXPECT_THAT(up, ElementsAre(1.0f, 2.0f, 0x1p-15f, 0x1p-126f));
  EXPECT_THAT(down, ElementsAre(1.0f, 2.0f, 0.25f, 1.0f));
}

TEST(Layers, TheSharedExpertKeepsItsOwnFormat) {
  CheckpointEditor m = CheckpointEditor::fixture("deepseek_v3_fp8_block");
  m.config["quantization_config"]["modules_to_not_convert"] = {"shared_experts", "lm_head"};
  test::RawTensors out;
  for (auto& [name, t] : m.tensors) {
    bool shared = name.find("shared_experts") != std::string::npos;
    if (shared && name.ends_with("_scale_inv")) continue;
    out[name] =
        shared ? test::RawTensor{"BF16", t.shape, std::string(t.bytes.size() * 2, '\x3c')} : t;
  }
  m.tensors = std::move(out);
  TempDir dir;
  m.write(dir);
  LayerWeights l = Checkpoint::open(dir.path()).layer(0);
  EXPECT_EQ(l.problem.format, "fp8_block_scales");
  ASSERT_TRUE(l.shared.has_value());
  EXPECT_EQ(l.shared->format, "none");
  EXPECT_EQ(l.shared->weights.up.layout.element, formats::Element::kBf16);
}

TEST(Layers, AStoredBiasIsNotAppliedWhenSwitchedOff) {
  CheckpointEditor m = CheckpointEditor::fixture("minimax_m2");
  m.config["use_routing_bias"] = false;
  TempDir dir;
  m.write(dir);
  LayerWeights l = Checkpoint::open(dir.path()).layer(0);
  EXPECT_FALSE(l.problem.routing.choice_bias);
  EXPECT_TRUE(l.router.choice_bias.empty());
  ASSERT_EQ(l.notices.size(), 1u);
  EXPECT_THAT(l.notices[0], HasSubstr("not applied"));
}

TEST(Layers, F32BiasesAreNeverNarrowed) {
  CheckpointEditor m = CheckpointEditor::fixture("deepseek_v3");
  std::vector<float> bias(16);
  for (std::size_t e = 0; e < 16; ++e) bias[e] = 8.08f + float(e) * 0x1p-20f;
  m.tensors["model.layers.0.mlp.gate.e_score_correction_bias"] = {
      "F32", {16}, test::f32_bytes(bias)};
  TempDir dir;
  m.write(dir);
  LayerWeights l = Checkpoint::open(dir.path()).layer(0);
  EXPECT_EQ(l.router.choice_bias, bias);
  EXPECT_TRUE(l.notices.empty());
  EXPECT_THAT(Checkpoint::open(data_dir("deepseek_v3")).layer(0).notices,
              ElementsAre(HasSubstr("BF16")));
}

// Neighbours are one run; a layer that is there ends it, and so does an MTP layer, which is not
// among those that must be there.
TEST(Layers, AbsentOnesAreNamedInRuns) {
  const auto layer = [](std::int64_t index, bool present, bool is_mtp = false) {
    LayerInfo out;
    out.index = index, out.present = present, out.is_mtp = is_mtp;
    return out;
  };
  const auto absent = [&](std::int64_t index) { return layer(index, false); };
  const auto there = [&](std::int64_t index) { return layer(index, true); };
  const auto mtp = [&](std::int64_t index) { return layer(index, false, true); };
  EXPECT_EQ(absent_text({there(0), absent(1), absent(2), absent(3), there(4), absent(7)}),
            "MoE layers 1 .. 3, 7 are declared and the checkpoint holds no tensor of them");
  EXPECT_EQ(absent_text({absent(1), absent(2), mtp(3), absent(4)}),
            "MoE layers 1 .. 2, 4 are declared and the checkpoint holds no tensor of them");
  EXPECT_EQ(absent_text({there(1), absent(2), mtp(3)}),
            "MoE layer 2 is declared and the checkpoint holds no tensor of it");
  EXPECT_EQ(absent_text({there(1), mtp(2)}), "");
  EXPECT_EQ(absent_text({}), "");
}

TEST(Layers, AbsentMtpLayersAreListed) {
  Checkpoint c = Checkpoint::open(data_dir("deepseek_v3"));
  ASSERT_EQ(c.layers().size(), 2u);
  EXPECT_TRUE(c.layers()[0].present && !c.layers()[0].is_mtp);
  EXPECT_TRUE(!c.layers()[1].present && c.layers()[1].is_mtp);
  EXPECT_EQ(c.layers()[1].index, 1);
  EXPECT_EQ(c.layers()[1].block, "model.layers.1.mlp");
}

TEST(Layers, PresentMtpLayersRun) {
  for (const char* folder : {"model.layers.1.", "mtp.layers.0.", "mtp.0."}) {
    for (int declared : {1, 0}) {
      SCOPED_TRACE(folder);
      CheckpointEditor m = CheckpointEditor::fixture("deepseek_v3");
      test::RawTensors copies;
      for (const auto& [name, t] : m.tensors)
        if (name.rfind("model.layers.0.", 0) == 0) copies[folder + name.substr(15)] = t;
      m.tensors.insert(copies.begin(), copies.end());
      m.config["num_nextn_predict_layers"] = declared;
      TempDir dir;
      m.write(dir);
      Checkpoint c = Checkpoint::open(dir.path());
      ASSERT_EQ(c.layers().size(), 2u);
      EXPECT_TRUE(c.layers()[1].present && c.layers()[1].is_mtp);
      EXPECT_EQ(c.layers()[1].block, std::string(folder) + "mlp");
      EXPECT_EQ(c.layer(1).router.weight, c.layer(0).router.weight);
      EXPECT_EQ(c.notices().size(), declared ? 0u : 1u);
    }
  }
}

TEST(Inspect, ReportsEveryFixtureAsGood) {
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SWITCHYARD_TEST_DATA)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;  // load tables
    ++checkpoints;
    SCOPED_TRACE(entry.path().string());
    InspectReport r = inspect(entry.path().string());
    EXPECT_TRUE(r.ok());
    json j = to_json(r);
    EXPECT_EQ(j["kind"], "directory");
    EXPECT_EQ(j["ok"], true);
    for (const json& layer : j["layers"]) {
      EXPECT_TRUE(layer["missing"].empty() && layer["extra"].empty() && layer["odd"].empty());
      EXPECT_EQ(layer["bytes"].get<std::int64_t>() > 0, layer["present"].get<bool>());
    }
  }
  EXPECT_GE(checkpoints, 12);
}

TEST(Inspect, ShowsScalesAndAnomalies) {
  InspectReport r = inspect(data_dir("qwen3_moe_nvfp4"));
  ASSERT_EQ(r.layers.size(), 1u);
  const LayerReport& l = r.layers[0];
  EXPECT_EQ(r.schema, "modelopt: NVFP4");
  ASSERT_EQ(l.projections.size(), 3u);
  EXPECT_EQ(l.projections[2].name, "down");
  EXPECT_EQ(l.projections[2].scales.count, 16 * 256 * 12);
  EXPECT_GT(l.projections[0].scales.max, l.projections[0].scales.min);
  EXPECT_GT(l.projections[0].input_min, 0);
  // Codes, block scales and a global scale: 16 experts x 3 projections of 192 x 256.
  EXPECT_EQ(l.routed_bytes, 16 * 3 * (192 * 128 + 192 * 16 + 4));
  EXPECT_FALSE(l.anomalies.empty());
  EXPECT_THAT(l.anomalies[0], HasSubstr("gate's global scale"));
  EXPECT_THAT(to_json(r)["layers"][0]["format"], "nvfp4");
}

TEST(Inspect, ListsMissingExtraAndOddTensorsTogether) {
  CheckpointEditor m = CheckpointEditor::fixture("mixtral");
  const std::string block = "model.layers.0.block_sparse_moe.";
  m.tensors.erase(block + "experts.2.w1.weight");
  m.tensors.erase(block + "experts.6.w2.weight");
  m.tensors[block + "extra"] = {"U8", {1}, "x"};
  m.tensors[block + "experts.3.w1.weight"].shape = {128, 96};
  TempDir dir;
  m.write(dir);
  InspectReport r = inspect(dir.path());
  EXPECT_FALSE(r.ok());
  json l = to_json(r)["layers"][0];
  EXPECT_EQ(l["ok"], false);
  ASSERT_EQ(l["missing"].size(), 2u);
  EXPECT_EQ(l["missing"][1]["tensor"], block + "experts.6.w2.weight");
  ASSERT_EQ(l["extra"].size(), 1u);
  EXPECT_EQ(l["extra"][0]["tensor"], block + "extra");
  ASSERT_EQ(l["odd"].size(), 1u);
  EXPECT_EQ(l["odd"][0]["kind"], "misshaped");
}

TEST(Inspect, ReadsOneFile) {
  InspectReport r = inspect(data_dir("mixtral") + "/model.safetensors");
  EXPECT_FALSE(r.is_directory);
  EXPECT_EQ(std::size_t(r.num_tensors), r.tensors.size());
  json j = to_json(r);
  EXPECT_EQ(j["kind"], "file");
  EXPECT_EQ(j["tensors"][0]["name"], "lm_head.weight");
  EXPECT_EQ(j["tensors"][0]["shape"], json::array({64, 128}));
}

TEST(MoeIo, ReadsPlainAndPrefixedNames) {
  TempDir dir;
  auto rows = [](float first, std::int64_t n) {
    std::vector<float> v;
    for (std::int64_t i = 0; i < n; ++i) v.push_back(first + float(i));
    return test::f32_bytes(v);
  };
  test::RawTensors t;
  t["hidden_states"] = {"BF16", {2, 2}, std::string("\x80\x3f\x00\x40\x40\x40\x80\x40", 8)};
  t["output"] = {"F32", {2, 2}, rows(10, 4)};
  t["layer3.hidden_states"] = {"F32", {1, 2}, rows(20, 2)};
  t["layer3.output"] = {"F16", {1, 2}, std::string("\x00\x3c\x00\x40", 4)};
  t["layer3.token_ids"] = {"I64", {1}, std::string("\x05\0\0\0\0\0\0\0", 8)};
  t["extra0"] = {"U8", {1}, "x"};
  auto open = [&] {
    return SafetensorsFile::open(dir.write("io.safetensors", test::safetensors_bytes(t)));
  };
  MoeIo plain = read_moe_io(open(), 0, 2);
  EXPECT_EQ(plain.tokens, 2);
  EXPECT_THAT(plain.hidden_states, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(plain.output, ElementsAre(10, 11, 12, 13));
  EXPECT_TRUE(plain.token_ids.empty());
  MoeIo third = read_moe_io(open(), 3, 2);
  EXPECT_THAT(third.hidden_states, ElementsAre(20, 21));
  EXPECT_THAT(third.output, ElementsAre(1, 2));
  EXPECT_THAT(third.token_ids, ElementsAre(5));

  auto fails = [&](const std::string& name, const test::RawTensor& bad, std::int64_t layer,
                   const char* says) {
    test::RawTensors good = t;
    t[name] = bad;
    if (bad.dtype.empty()) t.erase(name);
    EXPECT_THAT(test::usage_error_of([&] { read_moe_io(open(), layer, 2); }), HasSubstr(says))
        << name;
    t = good;
    EXPECT_NO_THROW(read_moe_io(open(), layer, 2));
  };
  fails("output", {}, 0, "'output'");
  fails("hidden_states", {}, 0, "'hidden_states'");
  fails("layer3.output", {}, 3, "'layer3.output'");
  fails("output", {"F32", {4, 1}, rows(0, 4)}, 0, "[4, 1]");
  fails("output", {"F32", {1, 2}, rows(0, 2)}, 0, "[2, 2]");
  fails("output", {"I32", {2, 2}, rows(0, 4)}, 0, "I32");
  fails("output", {"F32", {2, 2}, rows(std::nanf(""), 4)}, 0, "nan");
  fails("layer3.token_ids", {"I64", {1}, std::string(8, '\xff')}, 3, "-1");
  fails("layer3.token_ids", {"I32", {2}, rows(0, 2)}, 3, "token_ids");
  EXPECT_THAT(test::usage_error_of([&] { read_moe_io(open(), 0, 3); }), HasSubstr("[2, 2]"));
}

}  // namespace
}  // namespace switchyard::checkpoint
