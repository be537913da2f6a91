// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/moe_io.h"
#include "tests/support/naive_moe.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard::checkpoint {
namespace {

using formats::ActivationQuant;
using test::CheckpointEditor;
using test::data_dir;
using test::TempDir;
using Method = RoutingMethodType;

/// What a person reads in a fixture's config.json and tensor list.
struct Expected {
  const char* fixture;
  std::int64_t layer;
  const char* block;
  const char* format;
  std::int64_t hidden, inter, experts, top_k;
  Method method;
  std::int64_t n_group, topk_group;
  float factor;
  std::int64_t num_shared, shared_inter;
  bool shared_gate, expert_bias, choice_bias;
  const char* activation;
  ActivationQuant quant = ActivationQuant::kNone;
};

const Expected kExpected[] = {
    {"mixtral", 0, "model.layers.0.block_sparse_moe", "none", 128, 96, 8, 2, Method::kRenormalize,
     1, 1, 1, 0, 0, false, false, false, "swiglu"},
    {"qwen2_moe", 0, "model.layers.0.mlp", "none", 128, 96, 8, 3, Method::kDefault, 1, 1, 1, 1, 64,
     true, false, false, "swiglu"},
    {"qwen3_moe", 0, "model.layers.0.mlp", "none", 128, 96, 16, 4, Method::kRenormalize, 1, 1, 1, 0,
     0, false, false, false, "swiglu"},
    {"deepseek_v2", 0, "model.layers.0.mlp", "none", 128, 96, 16, 4, Method::kDeepSeekV2, 4, 2,
     2.5f, 2, 192, false, false, false, "swiglu"},
    {"deepseek_v3", 0, "model.layers.0.mlp", "none", 128, 96, 16, 4, Method::kDeepSeekV3, 4, 2,
     2.5f, 1, 96, false, false, true, "swiglu"},
    {"deepseek_v3_negative", 0, "model.layers.0.mlp", "none", 128, 96, 16, 4, Method::kDeepSeekV3,
     4, 2, 2.5f, 1, 96, false, false, true, "swiglu"},
    {"deepseek_v3_fp8_block", 0, "model.layers.0.mlp", "fp8_block_scales", 256, 192, 16, 4,
     Method::kDeepSeekV3, 4, 2, 2.5f, 1, 192, false, false, true, "swiglu",
     ActivationQuant::kFp8Block128},
    {"deepseek_v4", 0, "model.layers.0.ffn", "none", 128, 96, 16, 4, Method::kHash, 1, 1, 1.5f, 1,
     96, false, false, false, "swiglu(clamp=10)"},
    {"deepseek_v4", 1, "model.layers.1.ffn", "none", 128, 96, 16, 4, Method::kDeepSeekV4, 1, 1,
     1.5f, 1, 96, false, false, true, "swiglu(clamp=10)"},
    {"gpt_oss", 0, "model.layers.0.mlp", "none", 128, 96, 8, 4, Method::kRenormalize, 1, 1, 1, 0, 0,
     false, true, false, "swiglu_bias(gate_sigmoid_scale=1.702,linear_offset=1,clamp=7)"},
    {"gpt_oss_mxfp4", 0, "model.layers.0.mlp", "w4a16_mxfp4", 256, 192, 8, 4, Method::kRenormalize,
     1, 1, 1, 0, 0, false, true, false,
     "swiglu_bias(gate_sigmoid_scale=1.702,linear_offset=1,clamp=7)"},
    {"granitemoe", 0, "model.layers.0.block_sparse_moe", "none", 128, 96, 8, 2,
     Method::kRenormalize, 1, 1, 1, 0, 0, false, false, false, "swiglu"},
    {"llama4_text", 0, "model.layers.0.feed_forward", "none", 128, 96, 8, 1, Method::kLlama4, 1, 1,
     1, 1, 96, false, false, false, "swiglu"},
    {"minimax_m2", 0, "model.layers.0.block_sparse_moe", "none", 128, 96, 16, 4, Method::kMiniMax2,
     1, 1, 1, 0, 0, false, false, true, "swiglu"},
    {"nemotron_h", 0, "backbone.layers.0.mixer", "none", 128, 96, 16, 4, Method::kDeepSeekV3, 1, 1,
     2.5f, 1, 64, false, false, true, "relu2"},
    {"afmoe", 0, "model.layers.0.mlp", "none", 128, 96, 16, 4, Method::kMiniMax2, 1, 1, 1, 1, 96,
     false, false, true, "swiglu"},
    {"afmoe", 1, "model.layers.1.mlp", "none", 128, 96, 16, 4, Method::kMiniMax2, 1, 1, 1, 1, 96,
     false, false, true, "swiglu"},
    {"phimoe_soft", 0, "model.layers.0.block_sparse_moe", "none", 128, 96, 8, 2,
     Method::kSparseMixer, 1, 1, 1, 0, 0, false, false, false, "swiglu"},
    {"qwen3_moe_nvfp4", 0, "model.layers.0.mlp", "nvfp4", 256, 192, 16, 4, Method::kRenormalize, 1,
     1, 1, 0, 0, false, false, false, "swiglu", ActivationQuant::kNvfp4},
};

class Fixture : public ::testing::TestWithParam<Expected> {};

TEST_P(Fixture, YieldsTheSpecThatItsConfigMeans) {
  const Expected& x = GetParam();
  Checkpoint c = Checkpoint::open(data_dir(x.fixture));
  LayerWeights l = c.layer(x.layer);
  const Problem& p = l.problem;
  EXPECT_EQ(l.layer, x.layer);
  EXPECT_EQ(l.block, x.block);
  EXPECT_EQ(p, c.problem(x.layer));
  EXPECT_EQ(p.format, x.format);
  EXPECT_EQ(p.dtype, Dtype::kBf16);
  EXPECT_EQ(p.hidden, x.hidden);
  EXPECT_EQ(p.inter, x.inter);
  EXPECT_EQ(p.num_experts(), x.experts);
  EXPECT_EQ(p.top_k(), x.top_k);
  EXPECT_EQ(p.routing.method, x.method);
  EXPECT_EQ(p.routing.n_group, x.n_group);
  EXPECT_EQ(p.routing.topk_group, x.topk_group);
  EXPECT_EQ(p.routing.choice_bias, x.choice_bias);
  EXPECT_EQ(p.routed_scaling_factor, x.factor);
  EXPECT_EQ(p.num_shared, x.num_shared);
  EXPECT_EQ(p.shared_inter, x.shared_inter);
  EXPECT_EQ(p.shared_gate, x.shared_gate);
  EXPECT_EQ(p.expert_bias, x.expert_bias);
  EXPECT_EQ(describe(p.activation), x.activation);
  EXPECT_EQ(l.activation_quant, x.quant);
}

TEST_P(Fixture, YieldsTensorsOfTheSpecsShape) {
  const Expected& x = GetParam();
  Checkpoint c = Checkpoint::open(data_dir(x.fixture));
  LayerWeights l = c.layer(x.layer);
  EXPECT_EQ(l.router.weight.size(), std::size_t(x.experts * x.hidden));
  EXPECT_EQ(l.router.choice_bias.size(), std::size_t(x.choice_bias ? x.experts : 0));
  EXPECT_EQ(l.router.hash_table.size(), std::size_t(x.method == Method::kHash ? 64 * x.top_k : 0));
  for (std::int64_t e = 0; e < x.experts; ++e) {
    ExpertWeights w = l.expert(e);
    EXPECT_EQ(w.gate.has_value(), l.problem.gated());
    EXPECT_EQ(w.up.rows, x.inter);
    EXPECT_EQ(w.up.cols, x.hidden);
    EXPECT_EQ(w.down.rows, x.hidden);
    EXPECT_EQ(w.down.cols, x.inter);
    EXPECT_EQ(w.up.layout, l.layout);
    EXPECT_EQ(w.down_bias.size(), std::size_t(x.expert_bias ? x.hidden : 0));
    EXPECT_EQ(w.up.input_scale.has_value(), formats::is_static(x.quant));
    EXPECT_NO_THROW(w.up.check("up"));
    EXPECT_NO_THROW(w.down.check("down"));
    if (w.gate) {
      EXPECT_NO_THROW(w.gate->check("gate"));
    }
  }
  EXPECT_EQ(l.shared.has_value(), x.num_shared > 0);
  if (l.shared) {
    EXPECT_EQ(l.shared->weights.up.rows, x.shared_inter);
    EXPECT_EQ(l.shared->gate.size(), std::size_t(x.shared_gate ? x.hidden : 0));
    EXPECT_EQ(l.shared->format, x.format);
  }
  EXPECT_NE(test::usage_error_of([&] { l.expert(x.experts); }), "");
}

/// The public library's float32 output, so a bound of float32 roundings.
constexpr double kBound = 2e-6;

TEST_P(Fixture, ReproducesTheGivenOutput) {
  const Expected& x = GetParam();
  LayerWeights l = Checkpoint::open(data_dir(x.fixture)).layer(x.layer);
  MoeIo io = read_moe_io(SafetensorsFile::open(data_dir(x.fixture) + "/moe_io.safetensors"),
                         x.layer, x.hidden);
  EXPECT_EQ(io.tokens, 24);
  EXPECT_LE(test::rel_l2(test::naive_moe(l, io.hidden_states, io.token_ids), io.output), kBound);
}

TEST_P(Fixture, TheBoundCatchesSwappedHalvesAndShiftedExperts) {
  const Expected& x = GetParam();
  LayerWeights l = Checkpoint::open(data_dir(x.fixture)).layer(x.layer);
  MoeIo io = read_moe_io(SafetensorsFile::open(data_dir(x.fixture) + "/moe_io.safetensors"),
                         x.layer, x.hidden);
  auto good = l.expert;
  l.expert = [&](std::int64_t e) { return good((e + 1) % x.experts); };
  EXPECT_GT(test::rel_l2(test::naive_moe(l, io.hidden_states, io.token_ids), io.output),
            1000 * kBound);
  if (!l.problem.gated()) return;
  l.expert = [&](std::int64_t e) {
    ExpertWeights w = good(e);
    std::swap(*w.gate, w.up);
    return w;
  };
  EXPECT_GT(test::rel_l2(test::naive_moe(l, io.hidden_states, io.token_ids), io.output),
            1000 * kBound);
}

INSTANTIATE_TEST_SUITE_P(All, Fixture, ::testing::ValuesIn(kExpected), [](const auto& info) {
  return std::string(info.param.fixture) + "_" + std::to_string(info.param.layer);
});

// ---- values re-derived straight from the file's bytes ----

const CheckpointEditor& raw(const std::string& fixture) {
  static std::map<std::string, CheckpointEditor> cache;
  auto it = cache.find(fixture);
  if (it == cache.end()) it = cache.emplace(fixture, CheckpointEditor::fixture(fixture)).first;
  return it->second;
}

TEST(Values, GptOssColumnsAreInterleavedAndTransposed) {
  const auto& t = raw("gpt_oss").tensors;
  const auto& up = t.at("model.layers.0.mlp.experts.gate_up_proj");  // [8, 128, 192]
  const auto& down = t.at("model.layers.0.mlp.experts.down_proj");   // [8, 96, 128]
  const auto& bias = t.at("model.layers.0.mlp.experts.gate_up_proj_bias");
  LayerWeights l = Checkpoint::open(data_dir("gpt_oss")).layer(0);
  for (std::int64_t e : {0, 3, 7}) {
    ExpertWeights w = l.expert(e);
    for (std::int64_t r : {0, 5, 95})
      for (std::int64_t c : {0, 7, 127}) {
        EXPECT_EQ(w.gate->value(r, c), test::bf16_at(up, (e * 128 + c) * 192 + 2 * r));
        EXPECT_EQ(w.up.value(r, c), test::bf16_at(up, (e * 128 + c) * 192 + 2 * r + 1));
        EXPECT_EQ(w.down.value(c, r), test::bf16_at(down, (e * 96 + r) * 128 + c));
      }
    for (std::int64_t r : {0, 5, 95}) {
      EXPECT_EQ(w.gate_bias[std::size_t(r)], test::bf16_at(bias, e * 192 + 2 * r));
      EXPECT_EQ(w.up_bias[std::size_t(r)], test::bf16_at(bias, e * 192 + 2 * r + 1));
    }
  }
}

double e2m1(unsigned code) {
  const double values[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8 ? -1 : 1) * values[code & 7];
}

TEST(Values, GptOssMxfp4RowsAreInterleaved) {
  const auto& t = raw("gpt_oss_mxfp4").tensors;
  const auto& blocks =
      t.at("model.layers.0.mlp.experts.gate_up_proj_blocks").bytes;  // [8, 384, 8, 16]
  const auto& scales = t.at("model.layers.0.mlp.experts.gate_up_proj_scales").bytes;  // [8, 384, 8]
  LayerWeights l = Checkpoint::open(data_dir("gpt_oss_mxfp4")).layer(0);
  for (std::int64_t e : {0, 3, 7})
    for (std::int64_t r : {0, 5, 191})
      for (std::int64_t c : {0, 7, 31, 32, 254})
        for (std::int64_t half : {0, 1}) {
          ExpertWeights w = l.expert(e);
          std::int64_t row = e * 384 + 2 * r + half;
          unsigned byte = static_cast<unsigned char>(blocks[std::size_t(row * 128 + c / 2)]);
          unsigned exponent = static_cast<unsigned char>(scales[std::size_t(row * 8 + c / 32)]);
          double expected = std::ldexp(e2m1(c % 2 ? byte >> 4 : byte & 15), int(exponent) - 127);
          EXPECT_EQ((half ? w.up : *w.gate).value(r, c), expected)
              << e << ' ' << r << ' ' << c << ' ' << half;
        }
}

TEST(Values, Llama4ColumnsAreTransposedInHalves) {
  const auto& up =
      raw("llama4_text").tensors.at("model.layers.0.feed_forward.experts.gate_up_proj");
  LayerWeights l = Checkpoint::open(data_dir("llama4_text")).layer(0);
  ExpertWeights w = l.expert(3);
  EXPECT_EQ(w.gate->value(5, 7), test::bf16_at(up, (3 * 128 + 7) * 192 + 5));
  EXPECT_EQ(w.up.value(5, 7), test::bf16_at(up, (3 * 128 + 7) * 192 + 96 + 5));
}

TEST(Values, Nvfp4KeepsEveryScale) {
  const auto& t = raw("qwen3_moe_nvfp4").tensors;
  LayerWeights l = Checkpoint::open(data_dir("qwen3_moe_nvfp4")).layer(0);
  int distinct = 0;
  for (std::int64_t e = 0; e < 16; ++e) {
    ExpertWeights w = l.expert(e);
    std::string base = "model.layers.0.mlp.experts." + std::to_string(e) + ".";
    auto scalar = [&](const char* name) { return test::float_at(t.at(base + name), 0); };
    EXPECT_EQ(w.gate->global_scale, scalar("gate_proj.weight_scale_2"));
    EXPECT_EQ(w.up.global_scale, scalar("up_proj.weight_scale_2"));
    EXPECT_EQ(w.down.global_scale, scalar("down_proj.weight_scale_2"));
    EXPECT_EQ(w.gate->input_scale, scalar("gate_proj.input_scale"));
    EXPECT_EQ(w.down.input_scale, scalar("down_proj.input_scale"));
    distinct += w.gate->global_scale != w.up.global_scale;
    const auto& bytes = t.at(base + "down_proj.weight").bytes;
    EXPECT_EQ(std::memcmp(w.down.codes.data(), bytes.data(), bytes.size()), 0);
  }
  EXPECT_GT(distinct, 0) << "the fixture no longer tells the two alphas apart";
}

TEST(Values, Fp8BlocksHaveACeilingGrid) {
  const auto& t = raw("deepseek_v3_fp8_block").tensors;
  LayerWeights l = Checkpoint::open(data_dir("deepseek_v3_fp8_block")).layer(0);
  ExpertWeights w = l.expert(5);
  const auto& scales = t.at("model.layers.0.mlp.experts.5.down_proj.weight_scale_inv");
  ASSERT_EQ(w.down.scales.size(), 16u);  // [256, 192] in 128 x 128
  EXPECT_EQ(std::memcmp(w.down.scales.data(), scales.bytes.data(), 16), 0);
}

TEST(Values, ExpertsBorrowWhereTheFileIsCanonical) {
  LayerWeights plain = Checkpoint::open(data_dir("mixtral")).layer(0);
  const formats::Matrix first = plain.expert(1).up, again = plain.expert(1).up;
  EXPECT_EQ(first.codes.data(), again.codes.data()) << "a canonical tensor was copied";
  LayerWeights turned = Checkpoint::open(data_dir("llama4_text")).layer(0);
  const formats::Matrix one = turned.expert(1).up, two = turned.expert(1).up;
  EXPECT_NE(one.codes.data(), two.codes.data()) << "a transposed tensor cannot be borrowed";
}

TEST(Values, MatricesOutliveLayerAndCheckpoint) {
  std::optional<ExpertWeights> w;
  double expected = 0;
  {
    LayerWeights l = Checkpoint::open(data_dir("qwen3_moe")).layer(0);
    w = l.expert(2);
    expected = w->up.value(3, 4);
  }
  EXPECT_EQ(w->up.value(3, 4), expected);
}

// ---- other spellings of the same weights ----

/// The layer's matrices and router must equal the fixture's value by value.
void expect_same_layer(const LayerWeights& a, const LayerWeights& b) {
  EXPECT_EQ(a.problem, b.problem);
  EXPECT_EQ(a.router.weight, b.router.weight);
  auto same = [](const formats::Matrix& x, const formats::Matrix& y) {
    ASSERT_EQ(x.rows, y.rows);
    ASSERT_EQ(x.cols, y.cols);
    for (std::int64_t r = 0; r < x.rows; ++r)
      for (std::int64_t c = 0; c < x.cols; ++c)
        ASSERT_EQ(x.value(r, c), y.value(r, c)) << r << ' ' << c;
  };
  for (std::int64_t e = 0; e < a.problem.num_experts(); ++e) {
    ExpertWeights x = a.expert(e), y = b.expert(e);
    ASSERT_EQ(x.gate.has_value(), y.gate.has_value());
    if (x.gate) same(*x.gate, *y.gate);
    same(x.up, y.up);
    same(x.down, y.down);
  }
}

/// Joins per-expert tensors into [E, ...] ones.
void merge_experts(CheckpointEditor& m, const std::string& block,
                   const std::vector<std::string>& parts, const std::string& leaf,
                   const std::string& merged) {
  test::RawTensor out;
  std::int64_t experts = 0, rows = 0;
  for (; m.tensors.count(block + ".experts." + std::to_string(experts) + "." + parts[0] + leaf);
       ++experts) {
    rows = 0;
    for (const std::string& part : parts) {
      auto node =
          m.tensors.extract(block + ".experts." + std::to_string(experts) + "." + part + leaf);
      out.dtype = node.mapped().dtype;
      out.shape = node.mapped().shape;
      rows += out.shape[0];
      out.bytes += node.mapped().bytes;
    }
  }
  out.shape = {experts, rows, out.shape[1]};
  m.tensors[block + "." + merged] = out;
}

TEST(Spelling, MergedExpertsOfEveryPerExpertFamily) {
  struct Case {
    const char* fixture;
    std::string block;
    std::vector<std::string> up;
    const char *down, *merged_up;
  };
  const Case cases[] = {
      {"mixtral", "model.layers.0.block_sparse_moe", {"w1", "w3"}, "w2", "experts.gate_up_proj"},
      {"qwen3_moe",
       "model.layers.0.mlp",
       {"gate_proj", "up_proj"},
       "down_proj",
       "experts.gate_up_proj"},
      {"deepseek_v4", "model.layers.0.ffn", {"w1", "w3"}, "w2", "experts.gate_up_proj"},
      {"nemotron_h", "backbone.layers.0.mixer", {"up_proj"}, "down_proj", "experts.up_proj"},
  };
  for (const Case& c : cases) {
    CheckpointEditor m = raw(c.fixture);
    merge_experts(m, c.block, c.up, ".weight", c.merged_up);
    merge_experts(m, c.block, {c.down}, ".weight", "experts.down_proj");
    TempDir dir;
    m.write(dir);
    SCOPED_TRACE(c.fixture);
    expect_same_layer(Checkpoint::open(dir.path()).layer(0),
                      Checkpoint::open(data_dir(c.fixture)).layer(0));
  }
}

TEST(Spelling, PerExpertFormOfAStackedFamily) {
  CheckpointEditor m = raw("granitemoe");
  const std::string block = "model.layers.0.block_sparse_moe";
  auto up = m.tensors.extract(block + ".input_linear.weight").mapped();
  auto down = m.tensors.extract(block + ".output_linear.weight").mapped();
  for (std::size_t e = 0; e < 8; ++e) {
    std::string base = block + ".experts." + std::to_string(e) + ".";
    std::size_t half = 96 * 128 * 2;
    m.tensors[base + "gate_proj.weight"] = {"BF16", {96, 128}, up.bytes.substr(2 * e * half, half)};
    m.tensors[base + "up_proj.weight"] = {
        "BF16", {96, 128}, up.bytes.substr((2 * e + 1) * half, half)};
    m.tensors[base + "down_proj.weight"] = {"BF16", {128, 96}, down.bytes.substr(e * half, half)};
  }
  TempDir dir;
  m.write(dir);
  expect_same_layer(Checkpoint::open(dir.path()).layer(0),
                    Checkpoint::open(data_dir("granitemoe")).layer(0));
}

TEST(Spelling, MergedFp8BlocksWhenGateAndUpShareNoBlock) {
  CheckpointEditor m = raw("deepseek_v3_fp8_block");
  const std::string block = "model.layers.0.mlp";
  for (const char* leaf : {".weight", ".weight_scale_inv"}) {
    std::string suffix = std::string(leaf) == ".weight" ? "" : "_scale_inv";
    merge_experts(m, block, {"gate_proj", "up_proj"}, leaf, "experts.gate_up_proj" + suffix);
    merge_experts(m, block, {"down_proj"}, leaf, "experts.down_proj" + suffix);
  }
  // 2 x 192 rows are three blocks of 128 on disk: the middle one mixes gate and up.
  m.tensors[block + ".experts.gate_up_proj_scale_inv"] = {
      "F32", {16, 3, 2}, std::string(16 * 3 * 2 * 4, '\0')};
  TempDir dir;
  m.write(dir);
  EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(dir.path()).layer(0); }),
              ::testing::HasSubstr("192"));
  // Width 128: cut every expert to its first block of rows.
  CheckpointEditor narrow = raw("deepseek_v3_fp8_block");
  narrow.config["moe_intermediate_size"] = 128;
  auto cut = [&](test::RawTensor& t, std::int64_t rows, std::int64_t cols, std::size_t unit) {
    std::string bytes;
    for (std::int64_t r = 0; r < rows; ++r)
      bytes += t.bytes.substr(std::size_t(r * t.shape[1]) * unit, std::size_t(cols) * unit);
    t = {t.dtype, {rows, cols}, bytes};
  };
  for (auto& [name, t] : narrow.tensors) {
    if (name.find("experts.") == std::string::npos) continue;
    bool down = name.find("down_proj") != std::string::npos,
         scale = name.find("scale") != std::string::npos;
    if (scale) cut(t, down ? 2 : 1, down ? 1 : 2, 4);
    if (!scale) cut(t, down ? 256 : 128, down ? 128 : 256, 1);
  }
  TempDir separate, merged;
  narrow.write(separate);
  for (const char* leaf : {".weight", ".weight_scale_inv"}) {
    std::string suffix = std::string(leaf) == ".weight" ? "" : "_scale_inv";
    merge_experts(narrow, block, {"gate_proj", "up_proj"}, leaf, "experts.gate_up_proj" + suffix);
    merge_experts(narrow, block, {"down_proj"}, leaf, "experts.down_proj" + suffix);
  }
  narrow.write(merged);
  expect_same_layer(Checkpoint::open(merged.path()).layer(0),
                    Checkpoint::open(separate.path()).layer(0));
}

TEST(Spelling, EveryPrefixAndTheNestedConfig) {
  for (const char* root : {"model.language_model.", "language_model.model.", "backbone.", ""}) {
    CheckpointEditor m = raw("qwen3_moe");
    m.rename_prefix("model.", root);
    TempDir dir;
    m.write(dir);
    Checkpoint c = Checkpoint::open(dir.path());
    EXPECT_EQ(c.layers()[0].block, std::string(root) + "layers.0.mlp");
    expect_same_layer(c.layer(0), Checkpoint::open(data_dir("qwen3_moe")).layer(0));
  }
  CheckpointEditor m = raw("llama4_text");
  m.config = {
      {"model_type", "llama4"}, {"text_config", m.config}, {"vision_config", {{"hidden_size", 7}}}};
  m.rename_prefix("model.", "language_model.model.");
  TempDir dir;
  m.write(dir);
  expect_same_layer(Checkpoint::open(dir.path()).layer(0),
                    Checkpoint::open(data_dir("llama4_text")).layer(0));
}

TEST(Spelling, ShardedAndMisalignedFilesReadTheSame) {
  CheckpointEditor m = raw("deepseek_v4");
  TempDir shards, odd;
  m.write_sharded(shards, 4);
  expect_same_layer(Checkpoint::open(shards.path()).layer(1),
                    Checkpoint::open(data_dir("deepseek_v4")).layer(1));
  m.tensors["a"] = {"U8", {1}, "x"};  // first by name: every other tensor starts at an odd byte
  m.write(odd);
  LayerWeights l = Checkpoint::open(odd.path()).layer(1);
  expect_same_layer(l, Checkpoint::open(data_dir("deepseek_v4")).layer(1));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(l.expert(0).up.codes.data()) % 2, 0u);
  EXPECT_EQ(Checkpoint::open(odd.path()).layer(0).router.hash_table,
            Checkpoint::open(data_dir("deepseek_v4")).layer(0).router.hash_table);
}

TEST(Types, F32IsRoundedWithANoticeAndF16Stays) {
  for (const char* type : {"F32", "F16"}) {
    CheckpointEditor m = raw("qwen3_moe");
    std::vector<float> values(96 * 128);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + float(i % 300) * 0x1p-10f;
    for (auto& [name, t] : m.tensors) {
      if (name.find(".experts.") == std::string::npos) continue;
      t.dtype = type;
      t.bytes.clear();
      for (float v : values) {
        std::uint16_t half = float_to_fp16(v);
        t.bytes += type[1] == '3' ? std::string(reinterpret_cast<const char*>(&v), 4)
                                  : std::string(reinterpret_cast<const char*>(&half), 2);
      }
    }
    m.config["dtype"] = type[1] == '3' ? "float32" : "float16";
    TempDir dir;
    m.write(dir);
    LayerWeights l = Checkpoint::open(dir.path()).layer(0);
    bool rounds = type[1] == '3';
    EXPECT_EQ(l.layout.element, rounds ? formats::Element::kBf16 : formats::Element::kFp16);
    EXPECT_EQ(l.problem.dtype, rounds ? Dtype::kBf16 : Dtype::kFp16);
    EXPECT_EQ(l.notices.size(), rounds ? 1u : 0u);
    float expected = rounds ? bf16_to_float(float_to_bf16(values[5])) : values[5];
    EXPECT_EQ(l.expert(3).down.value(0, 5), expected);
    EXPECT_NE(bf16_to_float(float_to_bf16(values[5])), values[5]) << "the rounding must be visible";
  }
}

TEST(Families, TheTableListsWhatIsServed) {
  std::vector<std::string> names = known_families();
  for (const char* name :
       {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "deepseek_v4", "gpt_oss",
        "granitemoe", "llama4_text", "minimax_m2", "nemotron_h", "afmoe", "phimoe"})
    EXPECT_THAT(names, ::testing::Contains(name));
}

}  // namespace
}  // namespace switchyard::checkpoint
