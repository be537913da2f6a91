// SPDX-License-Identifier: Apache-2.0
// Every bundled checkpoint of a real family: its own format, f32, bf16, and every other format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "switchyard/api/judge.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/base/random.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/probe.h"
#include "tests/cases/moe_case.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/soak.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

struct Fixture {
  std::string name;
  std::string format;
  std::vector<std::int64_t> layers;
  double output_budget;  // of the own format, against the bundled output; DESIGN rule 12
  double oracle_budget;
};

// Written out by hand: a fixture that vanishes or changes its format fails.
const std::vector<Fixture> kFixtures = {
    {"afmoe", "none", {0, 1}, 5e-3, 5e-3},
    {"deepseek_v2", "none", {0}, 5e-3, 5e-3},
    {"deepseek_v3", "none", {0}, 5e-3, 5e-3},
    {"deepseek_v3_fp8_block", "fp8_block_scales", {0}, 0.06, 2e-3},
    {"deepseek_v3_negative", "none", {0}, 5e-3, 5e-3},
    {"deepseek_v4", "none", {0, 1}, 5e-3, 5e-3},
    {"gpt_oss", "none", {0}, 5e-3, 5e-3},
    {"gpt_oss_mxfp4", "w4a16_mxfp4", {0}, 5e-3, 5e-3},
    {"granitemoe", "none", {0}, 5e-3, 5e-3},
    {"llama4_text", "none", {0}, 5e-3, 5e-3},
    {"minimax_m2", "none", {0}, 5e-3, 5e-3},
    {"mixtral", "none", {0}, 5e-3, 5e-3},
    {"nemotron_h", "none", {0}, 5e-3, 5e-3},
    {"phimoe_soft", "none", {0}, 5e-3, 5e-3},
    {"qwen2_moe", "none", {0}, 5e-3, 5e-3},
    {"qwen3_moe", "none", {0}, 5e-3, 5e-3},
    {"qwen3_moe_nvfp4", "nvfp4", {0}, 0.20, 2e-3},
};

VerifyOptions options_for(const Fixture& f) {
  VerifyOptions o;
  o.io = test::data_dir(f.name) + "/moe_io.safetensors";
  o.build.threads = 2;
  return o;
}

VerifyResult verify_on(CpuIsa isa, const Fixture& f, const VerifyOptions& o) {
  Environment env = resolve::environment();
  env.isa = isa;
  const resolve::ScopedEnvironment scope(env);
  return verify(test::data_dir(f.name), o);
}

VerifyResult verify_with(const Fixture& f, const VerifyOptions& o) {
  return verify(test::data_dir(f.name), o);
}

void expect_within(const VerifiedLayer& v, double output, double oracle) {
  EXPECT_TRUE(v.ok) << v.leaf << " layer " << v.layer << ": " << v.rel_l2.value_or(-1)
                    << ", oracle " << v.rel_l2_oracle << ", ids " << v.ids_differing << ", codes "
                    << v.codes_differing << " of " << v.codes;
  EXPECT_LE(v.rel_l2_oracle, oracle);
  EXPECT_EQ(v.budget_rel_l2_oracle, oracle);
  ASSERT_TRUE(v.rel_l2.has_value());
  EXPECT_LE(*v.rel_l2, output);
  EXPECT_EQ(v.budget_rel_l2, output);
  EXPECT_EQ(v.tokens, 24);
}

TEST(Fixtures, TheTableListsEveryBundledCheckpoint) {
  std::vector<std::string> found, listed;
  for (const auto& entry : std::filesystem::directory_iterator(test::data_dir("")))
    if (std::filesystem::exists(entry.path() / "config.json"))
      found.push_back(entry.path().filename());
  for (const Fixture& f : kFixtures) listed.push_back(f.name);
  EXPECT_THAT(found, testing::UnorderedElementsAreArray(listed));
}

class EveryFixture : public testing::TestWithParam<Fixture> {};

TEST_P(EveryFixture, OwnFormat) {
  const Fixture& f = GetParam();
  const VerifyResult r = verify_with(f, options_for(f));
  EXPECT_TRUE(r.ok);
  std::vector<std::int64_t> layers;
  for (const VerifiedLayer& v : r.layers) {
    layers.push_back(v.layer);
    EXPECT_EQ(v.format, f.format);
    EXPECT_EQ(v.leaf, "switchyard.cpu.fused_moe." + f.format);
    EXPECT_FALSE(v.block.empty());
    expect_within(v, f.output_budget, f.oracle_budget);
  }
  EXPECT_EQ(layers, f.layers);
}

// The tier that runs by default has the other tests.
TEST_P(EveryFixture, EveryOtherTier) {
  const Fixture& f = GetParam();
  std::vector<std::string> formats{""};  // its own
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu))
    if (test::is_soak() && leaf->id.quant != f.format) formats.emplace_back(leaf->id.quant);
  for (CpuIsa isa : test::runnable_tiers()) {
    if (isa == resolve::environment().isa) continue;
    for (const std::string& format : formats) {
      VerifyOptions o = options_for(f);
      if (!format.empty()) o.build.format = format;
      const VerifyResult r = verify_on(isa, f, o);
      EXPECT_TRUE(r.ok) << to_string(isa) << " " << format;
      EXPECT_EQ(r.layers.size(), f.layers.size());
      for (const VerifiedLayer& v : r.layers) {
        EXPECT_LE(v.rel_l2_oracle, v.budget_rel_l2_oracle) << to_string(isa) << " " << v.leaf;
        if (format.empty()) expect_within(v, f.output_budget, f.oracle_budget);
      }
    }
  }
}

TEST_P(EveryFixture, F32AndBf16Activations) {
  for (const auto& [mode, budget] :
       {std::pair{ActivationMode::kF32, 1e-5}, {ActivationMode::kBf16, 5e-3}}) {
    VerifyOptions o = options_for(GetParam());
    o.build.activations = mode;
    for (const VerifiedLayer& v : verify_with(GetParam(), o).layers)
      expect_within(v, budget, budget);
  }
}

TEST_P(EveryFixture, AWrongFactorIsNoticed) {
  VerifyOptions o = options_for(GetParam());
  for (const VerifiedLayer& v : verify_with(GetParam(), o).layers) {
    const Checkpoint c = Checkpoint::open(test::data_dir(GetParam().name));
    o.layer = v.layer;
    o.build.routed_scaling_factor = 1.25f * c.impl().problem(v.layer).routed_scaling_factor;
    const VerifyResult wrong = verify_with(GetParam(), o);
    EXPECT_FALSE(wrong.ok);
    EXPECT_GT(*wrong.layers.at(0).rel_l2, *v.budget_rel_l2);
    EXPECT_LE(wrong.layers[0].rel_l2_oracle, v.budget_rel_l2_oracle) << "the oracle has it too";
  }
}

TEST_P(EveryFixture, EveryOtherFormat) {
  const Fixture& f = GetParam();
  for (const leaves::Leaf* leaf : leaves::all_leaves(Device::kCpu)) {
    if (leaf->id.quant == f.format) continue;
    VerifyOptions o = options_for(f);
    o.build.format = std::string(leaf->id.quant);
    const VerifyResult r = verify_with(f, o);
    EXPECT_TRUE(r.ok);
    for (const VerifiedLayer& v : r.layers) {
      EXPECT_EQ(v.leaf, leaf->id.str());
      EXPECT_EQ(v.format, leaf->id.quant);
      EXPECT_FALSE(v.budget_rel_l2.has_value())
          << "requantised weights have no bound to the output";
      EXPECT_GT(*v.rel_l2, 0);
      EXPECT_LE(v.rel_l2_oracle, v.budget_rel_l2_oracle)
          << v.leaf << ": ids " << v.ids_differing << ", codes " << v.codes_differing << " of "
          << v.codes;
      EXPECT_THAT(v.notices, testing::Contains(HasSubstr("converted")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Data, EveryFixture, testing::ValuesIn(kFixtures),
                         [](const auto& info) { return info.param.name; });

// ---- checkpoints of several layers ----

using test::CheckpointEditor;

/// A copy of layer 0 under `to`; with `bf16`, its experts are plain bf16 of other values.
void copy_layer(CheckpointEditor& m, const std::string& to, bool bf16) {
  const std::string from = "model.layers.0.";
  test::RawTensors copies;
  for (const auto& [name, t] : m.tensors) {
    if (!name.starts_with(from)) continue;
    const bool expert = bf16 && name.find(".experts.") != std::string::npos;
    if (expert && !name.ends_with(".weight")) continue;
    test::RawTensor copy = t;
    if (expert) {
      copy.dtype = "BF16";
      copy.shape[1] *= 2;  // two codes a byte
      copy.bytes.clear();
      const Random random(copies.size(), 3);
      for (std::int64_t i = 0; i < copy.shape[0] * copy.shape[1]; ++i) {
        const std::uint16_t bits = float_to_bf16(0.05f * random.normal(std::uint64_t(i)));
        copy.bytes.append(reinterpret_cast<const char*>(&bits), 2);
      }
    }
    copies[to + name.substr(from.size())] = copy;
  }
  m.tensors.insert(copies.begin(), copies.end());
}

TEST(Layers, Nvfp4BesideOneBf16LayerRunsEachOnItsOwnLeaf) {
  CheckpointEditor m = CheckpointEditor::fixture("qwen3_moe_nvfp4");
  copy_layer(m, "model.layers.1.", true);
  copy_layer(m, "model.layers.2.", false);
  m.config["num_hidden_layers"] = 3;
  m.config["quantization_config"]["ignore"].push_back("model.layers.1.*");
  test::TempDir dir;
  m.write(dir);
  VerifyOptions o;
  o.build.threads = 2;
  const VerifyResult r = verify(dir.path(), o);
  EXPECT_TRUE(r.ok);
  ASSERT_EQ(r.layers.size(), 3u);
  for (const VerifiedLayer& v : r.layers) {
    const std::string format = v.layer == 1 ? "none" : "nvfp4";
    EXPECT_EQ(v.leaf, "switchyard.cpu.fused_moe." + format);
    EXPECT_EQ(v.budget_rel_l2_oracle, v.layer == 1 ? 5e-3 : 2e-3);
    EXPECT_LE(v.rel_l2_oracle, v.budget_rel_l2_oracle);
    EXPECT_GT(v.tokens, 0);
  }
}

TEST(Layers, AMtpLayerRunsWhenItIsNamed) {
  CheckpointEditor m = CheckpointEditor::fixture("deepseek_v3");
  copy_layer(m, "model.layers.1.", false);
  test::TempDir dir;
  m.write(dir);
  VerifyOptions o;
  o.build.threads = 2;
  EXPECT_EQ(verify(dir.path(), o).layers.size(), 1u) << "all layers are those of the model proper";
  o.layer = 1;
  const VerifyResult r = verify(dir.path(), o);
  ASSERT_EQ(r.layers.size(), 1u);
  EXPECT_TRUE(r.ok);
  EXPECT_EQ(r.layers[0].block, "model.layers.1.mlp");
  EXPECT_THAT(test::usage_error_of([&] { verify(test::data_dir("deepseek_v3"), o); }),
              HasSubstr("holds none of its tensors"));
}

// ---- one layer, two ways in ----

struct Arrays {
  explicit Arrays(const checkpoint::LayerWeights& w) {
    for (std::int64_t e = 0; e < w.problem.num_experts(); ++e) {
      const checkpoint::ExpertWeights x = w.expert(e);
      append(gate, *x.gate), append(up, x.up), append(down, x.down);
    }
    arrays.problem = w.problem;
    arrays.gate = gate.data(), arrays.up = up.data(), arrays.down = down.data();
    arrays.router_weight = w.router.weight.data();
  }
  static void append(std::vector<std::byte>& to, const formats::Matrix& m) {
    to.insert(to.end(), m.codes.begin(), m.codes.end());
  }
  std::vector<std::byte> gate, up, down;
  LayerArrays arrays;
};

TEST(FromArrays, EqualsTheCheckpointThatHoldsTheSameWeights) {
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir("mixtral"));
  const checkpoint::LayerWeights weights = checkpoint.impl().layer(0);
  for (const std::string& format : leaves::format_names()) {
    BuildOptions o;
    o.threads = 2;
    o.format = format;
    const MoeLayer stored = MoeLayer::from_checkpoint(checkpoint, 0, o);
    std::optional<Arrays> given(weights);
    const MoeLayer built = MoeLayer::from_arrays(given->arrays, o);
    given.reset();  // the arrays are read during construction only
    EXPECT_EQ(built.leaf(), stored.leaf());
    EXPECT_EQ(built.packed_bytes(), stored.packed_bytes());
    EXPECT_EQ(built.problem().format, format);
    test::Call a(stored.impl(), 7), b(built.impl(), 7);
    EXPECT_EQ(a.run(), b.run()) << format;
  }
}

// A code of 4 bits has no NaN and no infinity: what is packed instead would be a wrong number.
TEST(FromArrays, AWeightThatIsNotFiniteIsRefusedByItsPlace) {
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir("mixtral"));
  const checkpoint::LayerWeights weights = checkpoint.impl().layer(0);
  const std::int64_t inter = weights.problem.inter, hidden = weights.problem.hidden;
  for (const std::string& format : leaves::format_names())
    for (const std::uint16_t bits : {0x7f80, 0xff80, 0x7fc0}) {
      BuildOptions o;
      o.format = format;
      Arrays given(weights);
      MoeLayer layer = MoeLayer::from_arrays(given.arrays, o);
      const auto spoil = [&](std::vector<std::byte>& array, std::int64_t element) {
        std::memcpy(array.data() + element * 2, &bits, 2);
      };
      spoil(given.up, (3 * inter + 5) * hidden + 7);
      EXPECT_THAT(test::usage_error_of([&] { MoeLayer::from_arrays(given.arrays, o); }),
                  testing::AllOf(HasSubstr("array up of expert 3"), HasSubstr("row 5, column 7"),
                                 HasSubstr("must be finite")))
          << format;
      test::Call call(layer.impl(), 3);
      const auto before = call.run();
      ExpertArrays expert{
          .gate = given.gate.data(), .up = given.up.data(), .down = given.down.data()};
      layer.update_expert(0, expert);  // of the first expert's arrays, which are whole
      spoil(given.down, 1);
      EXPECT_THAT(test::usage_error_of([&] { layer.update_expert(0, expert); }),
                  testing::AllOf(HasSubstr("array down: the weight at row 0, column 1"),
                                 HasSubstr("must be finite")))
          << format;
      EXPECT_EQ(call.run(), before) << "the layer is as it was";
    }
  Arrays given(weights);
  std::vector<float> router = weights.router.weight;
  router[std::size_t(hidden) + 2] = std::numeric_limits<float>::infinity();
  given.arrays.router_weight = router.data();
  EXPECT_THAT(test::usage_error_of([&] { MoeLayer::from_arrays(given.arrays, {}); }),
              HasSubstr("array router_weight: the weight at row 1, column 2 is inf"));
}

TEST(FromArrays, RefusesWhatDoesNotFitTogether) {
  const Checkpoint checkpoint = Checkpoint::open(test::data_dir("mixtral"));
  const checkpoint::LayerWeights weights = checkpoint.impl().layer(0);
  auto refused = [&](const std::function<void(LayerArrays&)>& change, const std::string& text) {
    Arrays given(weights);
    change(given.arrays);
    EXPECT_THAT(test::usage_error_of([&] { MoeLayer::from_arrays(given.arrays, {}); }),
                HasSubstr(text));
  };
  refused([](LayerArrays& a) { a.gate = nullptr; }, "gate");
  refused([](LayerArrays& a) { a.router_weight = nullptr; }, "router_weight");
  refused([](LayerArrays& a) { a.problem.format = "nvfp4"; }, "BuildOptions::format");
  refused([](LayerArrays& a) { a.problem.num_shared = 1, a.problem.shared_inter = 64; },
          "shared expert");
  refused([](LayerArrays& a) { a.problem.activation = Relu2{}; }, "no gate");
  const float bias[8] = {};
  refused([&](LayerArrays& a) { a.choice_bias = bias; }, "choice_bias is given");
  refused([](LayerArrays& a) { a.problem.routing.per_expert_scale = true; },
          "per_expert_scale is null");
  refused([](LayerArrays& a) { a.vocab = -1; }, "vocab is -1");
  Arrays good(weights);
  EXPECT_NO_THROW(MoeLayer::from_arrays(good.arrays, {}));
}

TEST(BuildOptions, WhatIsNotBuiltIsSaid) {
  auto refused = [](const std::function<void(BuildOptions&)>& change, const std::string& text) {
    BuildOptions o;
    change(o);
    EXPECT_THAT(test::usage_error_of([&] { MoeLayer::from_preset("tiny", o); }), HasSubstr(text));
  };
  auto cannot = [](const std::function<void(BuildOptions&)>& change, const std::string& text,
                   const std::string& reason) {
    BuildOptions o;
    change(o);
    try {
      MoeLayer::from_preset("tiny", o);
      ADD_FAILURE() << "built, although it should say: " << text;
    } catch (const CannotServe& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
      EXPECT_THAT(e.what(), HasSubstr(reason));
    }
  };
  cannot([](BuildOptions& o) { o.slots = 10; }, "slots = 10 for 8 experts", "eplb_unsupported");
  cannot([](BuildOptions& o) { o.ep = 2; }, "ep 2", "path_not_enabled");
  refused([](BuildOptions& o) { o.ep = o.tp = -1; }, "ep = -1 is out of range");
  refused([](BuildOptions& o) { o.with_parallel_mlp = true; }, "with_parallel_mlp");
  BuildOptions o;
  o.slots = 8;
  EXPECT_NO_THROW(MoeLayer::from_preset("tiny", o));
}

TEST(BuildOptions, WeightOnlyNvfp4KeepsItsBf16Activations) {
  test::CheckpointEditor m = test::CheckpointEditor::fixture("qwen3_moe_nvfp4");
  m.config["quantization_config"]["quant_algo"] = "W4A16_NVFP4";
  test::TempDir dir;
  m.write(dir);
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  auto activations = [&](const BuildOptions& o) {
    return MoeLayer::from_checkpoint(checkpoint, 0, o).problem().activations;
  };
  BuildOptions o;
  EXPECT_EQ(activations(o), ActivationMode::kBf16);
  o.format = "fp8";
  EXPECT_EQ(activations(o), ActivationMode::kFormat);
  o.activations = ActivationMode::kF32;
  EXPECT_EQ(activations(o), ActivationMode::kF32);
}

TEST(FromPreset, TheTraceIsThePlanOfTheReport) {
  for (const std::string& format : leaves::format_names()) {
    BuildOptions o;
    o.format = format;
    o.threads = 2;
    const MoeLayer layer = MoeLayer::from_preset("tiny", o);
    const nlohmann::json report = nlohmann::json::parse(layer.report_json());
    test::Call call(layer.impl(), 3);
    Trace trace;
    call.run([&](ForwardArgs& a) { a.trace = &trace; });
    EXPECT_EQ(report.at("winner"), trace.leaf);
    EXPECT_EQ(report.at("problem").at("format"), format);
  }
}

}  // namespace
}  // namespace switchyard
