// SPDX-License-Identifier: Apache-2.0
// Every family and schema without a bundled checkpoint, from a written one: what the loader makes
// of the file against what the file was made of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/inspect.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/quantization.h"
#include "tests/support/naive_moe.h"
#include "tests/support/written_checkpoint.h"

namespace switchyard::checkpoint {
namespace {

using test::naive_moe;
using test::rel_l2;
using test::TempDir;
using test::WrittenCheckpoint;
using test::WrittenSpec;

/// Decoded weights are equal; a reciprocal scale and a folded router weight round once in fp32.
constexpr double kBound = 2e-6;

class Written : public ::testing::TestWithParam<WrittenSpec> {
 protected:
  Written() : written(test::make_checkpoint(GetParam())) { written.write(dir); }
  LayerWeights load() const { return Checkpoint::open(dir.path()).layer(GetParam().layer); }
  double error(const LayerWeights& l) const {
    return rel_l2(naive_moe(l, written.io.hidden_states, {}), written.io.output);
  }

  WrittenCheckpoint written;
  TempDir dir;
};

TEST_P(Written, MeansWhatItsConfigSays) {
  const WrittenSpec& spec = GetParam();
  Checkpoint c = Checkpoint::open(dir.path());
  std::vector<std::int64_t> layers;
  for (const LayerInfo& l : c.layers())
    if (l.present) layers.push_back(l.index);
  EXPECT_THAT(layers, ::testing::ElementsAre(spec.layer));
  LayerWeights l = c.layer(spec.layer);
  EXPECT_EQ(l.block, spec.block);
  EXPECT_EQ(describe(l.problem.routing), describe(spec.problem.routing));
  EXPECT_EQ(describe(l.problem.activation), describe(spec.problem.activation));
  EXPECT_EQ(l.problem, spec.problem);
  EXPECT_EQ(l.layout, written.truth.layout);
  EXPECT_EQ(l.latent.has_value(), spec.problem.latent > 0);
  EXPECT_EQ(l.parallel_mlp.has_value(), spec.parallel_inter > 0);
  ASSERT_EQ(l.shared.has_value(), spec.problem.num_shared > 0);
  if (l.shared) {
    EXPECT_EQ(describe(l.shared->activation), describe(spec.shared_activation));
  }
  EXPECT_TRUE(inspect(dir.path()).ok());
}

TEST_P(Written, GivesTheOutputOfTheWeightsItWasMadeOf) { EXPECT_LE(error(load()), kBound); }

TEST_P(Written, TheBoundCatchesSwappedHalvesAndShiftedExperts) {
  LayerWeights l = load();
  auto good = l.expert;
  const std::int64_t experts = l.problem.num_experts();
  l.expert = [&](std::int64_t e) { return good((e + 1) % experts); };
  EXPECT_GT(error(l), 1000 * kBound);
  if (!l.problem.gated()) return;
  l.expert = [&](std::int64_t e) {
    ExpertWeights w = good(e);
    std::swap(*w.gate, w.up);
    return w;
  };
  EXPECT_GT(error(l), 1000 * kBound);
}

TEST_P(Written, TheBoundCatchesEachPartThatIsLeftOut) {
  const LayerWeights good = load();
  auto without = [&](auto change) {
    LayerWeights l = good;
    change(l);
    EXPECT_GT(error(l), 100 * kBound);
  };
  if (good.shared) without([](LayerWeights& l) { l.shared.reset(); });
  if (good.shared && !good.shared->gate.empty())
    without([](LayerWeights& l) { l.shared->gate.clear(); });
  if (good.problem.routing.choice_bias)
    without([](LayerWeights& l) { l.problem.routing.choice_bias = false; });
  if (good.problem.routing.per_expert_scale)
    without([](LayerWeights& l) { l.problem.routing.per_expert_scale = false; });
  if (good.problem.routing.input_norm_eps > 0)
    without([](LayerWeights& l) { l.problem.routing.input_norm_eps = 0; });
  if (good.problem.routed_scaling_factor != 1)
    without([](LayerWeights& l) { l.problem.routed_scaling_factor = 1; });
  if (good.latent && !good.latent->norm.empty())
    without([](LayerWeights& l) { l.latent->norm.clear(); });
  if (!good.expert(0).down_bias.empty())
    without([&](LayerWeights& l) {
      l.expert = [&good](std::int64_t e) {
        ExpertWeights w = good.expert(e);
        w.down_bias.clear();
        return w;
      };
    });
}

TEST_P(Written, EveryMissingTensorIsNamed) {
  // One tensor of each kind: the loader looks the others up by the same names.
  std::set<std::string> kinds;
  for (const auto& [name, tensor] : written.files.tensors) {
    std::string kind = name.substr(
        name.rfind(".experts.") == std::string::npos ? 0 : name.rfind('.', name.rfind('.') - 1));
    const WrittenSpec& spec = GetParam();
    bool optional = name.find("shared_mlp") != std::string::npos && spec.parallel_inter > 0;
    optional =
        optional || (!spec.names.input_norm.empty() && name.ends_with(spec.names.input_norm));
    optional = optional || (!spec.names.choice_bias.empty() && !spec.problem.routing.choice_bias &&
                            name.ends_with(spec.names.choice_bias));
    optional = optional || (spec.problem.activations == ActivationMode::kBf16 &&
                            name.ends_with(".input_global_scale"));
    if (optional || !kinds.insert(kind).second) continue;
    test::CheckpointEditor damaged = written.files;
    damaged.tensors.erase(name);
    TempDir broken;
    damaged.write(broken);
    // A missing scale is named by the first of its spellings.
    std::string named = name.ends_with(".scale") ? name.substr(0, name.rfind('.') + 1) : name;
    EXPECT_THAT(
        test::usage_error_of([&] { Checkpoint::open(broken.path()).layer(GetParam().layer); }),
        ::testing::HasSubstr(named));
  }
  EXPECT_NO_THROW(load());
}

INSTANTIATE_TEST_SUITE_P(Specs, Written, ::testing::ValuesIn(test::written_specs()),
                         [](const auto& info) { return info.param.name; });

TEST(WrittenSpecs, EveryServedFamilyIsBundledOrWritten) {
  std::set<std::string> seen = {"mixtral",     "qwen2_moe",  "qwen3_moe",  "deepseek_v2",
                                "deepseek_v3", "gpt_oss",    "granitemoe", "llama4_text",
                                "minimax_m2",  "nemotron_h", "afmoe",      "phimoe"};
  for (const WrittenSpec& spec : test::written_specs()) {
    nlohmann::json config = nlohmann::json::parse(spec.config);
    seen.insert(config["model_type"]);
    if (config.contains("text_config")) seen.insert(config["text_config"]["model_type"]);
  }
  // Other names of a family that is in the list.
  const std::set<std::string> aliases = {"qwen3_vl_moe", "minimax_text_01", "minimax_m1",
                                         "minimax_m3",   "minimax_m3_text", "kimi_k2",
                                         "hunyuan",      "bailing_hybrid",  "step3p7",
                                         "step3p7_text", "glm5_next_text",  "bailing_moe_linear"};
  for (const std::string& name : known_families())
    EXPECT_TRUE(seen.count(name) + aliases.count(name))
        << name << " has no checkpoint that tests it";
}

TEST(Readme, ListsEveryFamilyAndSchema) {
  const std::string readme = test::slurp(std::string(SWITCHYARD_SOURCE_ROOT) + "/README.md");
  for (const std::string& name : known_families())
    EXPECT_THAT(readme, ::testing::HasSubstr("`" + name + "`"));
  for (const std::string& schema : known_schemas()) {
    std::string method = schema.substr(0, schema.find(':'));
    std::string algorithm = schema.substr(std::min(schema.size(), method.size() + 2));
    algorithm = algorithm.substr(0, algorithm.find(' '));
    if (method == "expert_dtype") algorithm = method + ": " + algorithm;
    EXPECT_THAT(readme, ::testing::HasSubstr(method));
    if (!algorithm.empty() && method != "mxfp4") {
      EXPECT_THAT(readme, ::testing::HasSubstr("`" + algorithm + "`"));
    }
  }
}

}  // namespace
}  // namespace switchyard::checkpoint
