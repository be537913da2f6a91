// SPDX-License-Identifier: Apache-2.0
// Which scheme a declaration gives which module: the MLP beside a block, groups, and what must not
// be ignored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/quantization.h"
#include "tests/support/written_checkpoint.h"

namespace switchyard::checkpoint {
namespace {

using formats::Matrix;
using formats::WeightLayout;
using nlohmann::json;
using test::RawTensors;
using test::TempDir;
using test::WrittenCheckpoint;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const test::WrittenSpec& spec_named(const std::string& name) {
  for (const test::WrittenSpec& spec : test::written_specs())
    if (spec.name == name) return spec;
  throw InternalError(cat("no written checkpoint ", name));
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

json compressed(const char* format, const json& weights, const json& activations) {
  return {
      {"quant_method", "compressed-tensors"},
      {"format", format},
      {"ignore", {"re:.*block_sparse_moe.*"}},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", activations}}}}}};
}

/// How a declaration stores a linear layer.
struct Case {
  const char* format;
  json declaration;
  WeightLayout layout;
  const char *codes, *scale;
  bool vector = false;  // scales stand as [rows]
  const char *global = "", *input = "";
  bool divides = false;
};

std::vector<Case> cases() {
  using formats::Element;
  using formats::ScaleType;
  const json four = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  const WeightLayout nvfp4 = {Element::kE2m1, ScaleType::kE4m3, 1, 16, true, false};
  const WeightLayout channel = {Element::kE4m3, ScaleType::kF32, 1, 0, false, false};
  const json fp8 = {{"num_bits", 8}, {"strategy", "channel"}},
             token = {{"num_bits", 8}, {"strategy", "token"}, {"dynamic", true}};
  return {
      {"fp8_block_scales",
       {{"quant_method", "fp8"},
        {"weight_block_size", {128, 128}},
        {"modules_to_not_convert", {"block_sparse_moe"}}},
       {Element::kE4m3, ScaleType::kF32, 128, 128, false, false},
       "weight",
       "weight_scale_inv"},
      {"fp8",
       {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"ignore", {"*.block_sparse_moe*"}}},
       {Element::kE4m3, ScaleType::kF32, 0, 0, false, false},
       "weight",
       "weight_scale",
       true,
       "",
       "input_scale"},
      {"nvfp4",
       {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"*.block_sparse_moe*"}}},
       nvfp4,
       "weight",
       "weight_scale",
       false,
       "weight_scale_2",
       "input_scale"},
      {"nvfp4", compressed("nvfp4-pack-quantized", four, four), nvfp4, "weight_packed",
       "weight_scale", false, "weight_global_scale", "input_global_scale", true},
      {"fp8", compressed("float-quantized", fp8, token), channel, "weight", "weight_scale"},
      {"fp8", compressed("float-quantized", fp8, token), channel, "weight", "weight_scale", true},
      {"w4a16_mxfp4",
       compressed("mxfp4-pack-quantized", {{"num_bits", 4}, {"group_size", 32}}, nullptr),
       {Element::kE2m1, ScaleType::kE8m0, 1, 32, false, false},
       "weight_packed",
       "weight_scale"},
  };
}

constexpr std::int64_t kHidden = 128, kInter = 128;
const std::string kFolder = "model.layers.0.shared_mlp.";

Matrix make(const WeightLayout& layout, std::int64_t rows, float first) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * kHidden; ++i)
    values.push_back(std::sin(first + 0.37f * float(i)) * (1 + float(i / kHidden) / 64));
  return formats::quantize_matrix(values, rows, kHidden, layout);
}

void store(RawTensors& out, const std::string& module, const Matrix& m, const Case& c) {
  const bool four = m.layout.element == formats::Element::kE2m1;
  const std::string base = kFolder + module + ".";
  out.erase(base + "weight");
  out[base + c.codes] = {
      four ? "U8" : "F8_E4M3", {m.rows, four ? m.cols / 2 : m.cols}, text(m.codes)};
  std::vector<std::int64_t> grid = {m.layout.scale_rows(m.rows), m.layout.scale_cols(m.cols)};
  if (c.vector) grid.pop_back();
  const char* type = m.layout.scale == formats::ScaleType::kF32    ? "F32"
                     : m.layout.scale == formats::ScaleType::kE4m3 ? "F8_E4M3"
                                                                   : "U8";
  out[base + c.scale] = {type, grid, text(m.scales)};
  if (*c.global)
    out[base + c.global] = {
        "F32", {1}, test::f32_bytes({c.divides ? 1 / m.global_scale : m.global_scale})};
  if (*c.input) out[base + c.input] = {"F32", {1}, test::f32_bytes({0.25f})};
}

/// A written Granite whose MLP beside the block is quantised.
struct Beside {
  explicit Beside(const Case& c)
      : written(test::make_checkpoint(spec_named("granitemoeshared"))),
        joint(make(c.layout, 2 * kInter, 1)),
        down(make(c.layout, kHidden, 2)) {
    written.files.config["shared_intermediate_size"] = kInter;
    written.files.config["quantization_config"] = c.declaration;
    store(written.files.tensors, "input_linear", joint, c);
    store(written.files.tensors, "output_linear", down, c);
  }
  LayerWeights load() const {
    TempDir dir;
    written.files.write(dir);
    return Checkpoint::open(dir.path()).layer(0);
  }

  WrittenCheckpoint written;
  Matrix joint, down;
};

void expect_rows(const Matrix& got, const Matrix& want, std::int64_t first) {
  for (std::int64_t r = 0; r < got.rows; ++r)
    for (std::int64_t k = 0; k < got.cols; ++k) {
      const double value = want.value(first + r, k);
      ASSERT_NEAR(got.value(r, k), value, 2e-7 * std::abs(value)) << r << ", " << k;
    }
}

TEST(ParallelMlp, IsReadInEverySchemeOfALinearLayer) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.declaration.dump());
    const Beside beside(c);
    const LayerWeights l = beside.load();
    ASSERT_TRUE(l.parallel_mlp) << (l.notices.empty() ? "" : l.notices.back());
    EXPECT_EQ(l.parallel_mlp->format, c.format);
    const ExpertWeights& w = l.parallel_mlp->weights;
    expect_rows(*w.gate, beside.joint, 0);
    expect_rows(w.up, beside.joint, kInter);
    expect_rows(w.down, beside.down, 0);
    EXPECT_GT(std::abs(w.gate->value(0, 1) - w.up.value(0, 1)), 1e-3);
    if (*c.input) {
      EXPECT_EQ(w.up.input_scale, c.divides ? 4.0f : 0.25f);
    }
    EXPECT_EQ(l.problem.format, "none");
  }
}

TEST(ParallelMlp, FaultsLeaveItOutAndNotTheLayer) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.declaration.dump());
    Beside beside(c);
    ASSERT_EQ(beside.written.files.tensors.erase(kFolder + "input_linear." + c.scale), 1u);
    const LayerWeights l = beside.load();
    EXPECT_FALSE(l.parallel_mlp);
    ASSERT_EQ(l.notices.size(), 1u);
    EXPECT_THAT(l.notices[0], StartsWith(std::string(kUnreadMlp)));
    EXPECT_THAT(l.notices[0], HasSubstr(kFolder + "input_linear." + c.scale));
    EXPECT_EQ(l.expert(0).up.rows, 96);
  }
  Beside blocks(cases()[0]);
  blocks.written.files.config["quantization_config"] = {
      {"quant_method", "mxfp4"}, {"modules_to_not_convert", {"block_sparse_moe"}}};
  const LayerWeights l = blocks.load();
  EXPECT_FALSE(l.parallel_mlp);
  ASSERT_EQ(l.notices.size(), 1u);
  EXPECT_THAT(l.notices[0], HasSubstr("mxfp4"));
  EXPECT_TRUE(Beside(cases()[0]).load().parallel_mlp);
}

const json kFp8Group = {
    {"targets", {"Linear"}},
    {"format", "float-quantized"},
    {"weights", {{"num_bits", 8}, {"strategy", "channel"}}},
    {"input_activations", {{"num_bits", 8}, {"strategy", "token"}, {"dynamic", true}}}};
const json kNvfp4Group = {{"targets", {"re:.*experts.*"}},
                          {"format", "nvfp4-pack-quantized"},
                          {"weights", {{"num_bits", 4}, {"group_size", 16}}}};

json groups(const json& of) {
  return {{"quant_method", "compressed-tensors"}, {"config_groups", of}};
}

Quantization parse(const json& block) {
  std::vector<std::string> notices;
  return Quantization::parse(&block, nullptr, "here", notices);
}

json retarget(json group, const char* target) {
  group["targets"] = {target};
  return group;
}

TEST(CompressedGroups, NamesGoBeforeClassesInEveryOrder) {
  const std::string expert = "model.layers.0.mlp.experts.3.up_proj",
                    other = "model.layers.0.o_proj";
  for (const json& of :
       {json{{"group_0", kFp8Group}, {"group_1", kNvfp4Group}},
        json{{"group_0", kNvfp4Group}, {"group_1", kFp8Group}},
        json{{"group_0", kFp8Group}, {"group_1", retarget(kNvfp4Group, expert.c_str())}}}) {
    SCOPED_TRACE(of.dump());
    const Quantization q = parse(groups(of));
    EXPECT_EQ(q.scheme_of(expert).format, "nvfp4");
    EXPECT_EQ(q.scheme_of(other).format, "fp8");
    EXPECT_EQ(q.algorithm(), "mixed-precision");
  }
}

TEST(CompressedGroups, OfTwoThatMatchTheLowerNumberCounts) {
  const json two = retarget(kFp8Group, "re:.*mlp.*");
  const std::string expert = "model.layers.0.mlp.experts.3.up_proj";
  EXPECT_EQ(parse(groups({{"group_2", two}, {"group_10", kNvfp4Group}})).scheme_of(expert).format,
            "fp8");
  EXPECT_EQ(parse(groups({{"group_10", two}, {"group_2", kNvfp4Group}})).scheme_of(expert).format,
            "nvfp4");
}

TEST(CompressedFields, ThatChangeTheWeightsAreRefusedByName) {
  const json good = groups({{"group_0", kFp8Group}});
  auto refusal = [&](const json& patch) {
    json block = good;
    block.merge_patch(patch);
    std::string text = test::usage_error_of([&] { parse(block); });
    EXPECT_EQ(parse(good).algorithm(), "float-quantized");
    return text;
  };
  EXPECT_THAT(refusal({{"transform_config", {{"config_groups", {{"R1", 1}}}}}}),
              HasSubstr("'transform_config'"));
  EXPECT_THAT(refusal({{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}),
              HasSubstr("'sparsity_config'"));
  EXPECT_THAT(refusal({{"sparsity_config", "sparse"}}), HasSubstr("'sparsity_config'"));
  EXPECT_THAT(
      refusal({{"config_groups", {{"group_0", {{"output_activations", {{"num_bits", 8}}}}}}}}),
      HasSubstr("group_0: 'output_activations'"));
  for (const json& nothing : {json(nullptr), json::object()}) {
    json block = good;
    block["transform_config"] = block["sparsity_config"] = nothing;
    block["config_groups"]["group_0"]["output_activations"] = nothing;
    EXPECT_EQ(parse(block).algorithm(), "float-quantized");
    block["sparsity_config"] = {{"format", "dense"}, {"global_sparsity", 0.1}};
    EXPECT_EQ(parse(block).algorithm(), "float-quantized");
  }
}

TEST(Notices, NameTheOutputBiasThatExpertsCarry) {
  for (const char* name : {"jetmoe", "granitemoeshared"}) {
    const WrittenCheckpoint written = test::make_checkpoint(spec_named(name));
    TempDir dir;
    written.write(dir);
    const LayerWeights l = Checkpoint::open(dir.path()).layer(0);
    EXPECT_EQ(has_notice(l, kOutputBias), !spec_named(name).names.output_bias.empty()) << name;
  }
}

TEST(Bailing, DefaultsThatDifferBetweenReleasesMustBeStated) {
  const WrittenCheckpoint written = test::make_checkpoint(spec_named("bailing_moe_v2"));
  for (const char* field : {"n_group", "topk_group", "routed_scaling_factor"}) {
    test::CheckpointEditor files = written.files;
    files.config.erase(field);
    TempDir dir;
    files.write(dir);
    EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(dir.path()); }),
                HasSubstr(cat("has no '", field, "'")));
  }
  test::CheckpointEditor linear = written.files;
  linear.config["model_type"] = "bailing_moe_linear";
  linear.config.erase("score_function");
  TempDir dir;
  linear.write(dir);
  EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(dir.path()); }),
              HasSubstr("'score_function'"));
  linear.config["score_function"] = "sigmoid";
  TempDir good;
  linear.write(good);
  EXPECT_NO_THROW(Checkpoint::open(good.path()).layer(1));
}

TEST(StoredDivisors, MustBeFiniteAndPositive) {
  const WrittenCheckpoint written = test::make_checkpoint(spec_named("compressed_nvfp4"));
  auto load = [](const test::CheckpointEditor& files) {
    TempDir dir;
    files.write(dir);
    Checkpoint::open(dir.path()).layer(0);
  };
  for (const char* name : {"weight_global_scale", "input_global_scale"}) {
    const std::string tensor = cat("model.layers.0.mlp.experts.2.up_proj.", name);
    for (float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), 0.0f,
          -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
      SCOPED_TRACE(cat(tensor, " = ", bad));
      test::CheckpointEditor damaged = written.files;
      damaged.tensors.at(tensor).bytes = test::f32_bytes({bad});
      EXPECT_THAT(test::usage_error_of([&] { load(damaged); }), HasSubstr(tensor));
    }
  }
  EXPECT_NO_THROW(load(written.files));
}

}  // namespace
}  // namespace switchyard::checkpoint
