// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <map>

#include "switchyard/base/stands_at.h"
#include "switchyard/checkpoint/loader.h"
#include "tests/support/safetensors_writer.h"

namespace switchyard::checkpoint {
namespace {

using nlohmann::json;
using test::CheckpointEditor;
using test::TempDir;
using ::testing::HasSubstr;

const CheckpointEditor& raw(const std::string& fixture) {
  static std::map<std::string, CheckpointEditor> cache;
  auto it = cache.find(fixture);
  if (it == cache.end()) it = cache.emplace(fixture, CheckpointEditor::fixture(fixture)).first;
  return it->second;
}

void read_all(const std::string& path) {
  Checkpoint c = Checkpoint::open(path);
  for (const LayerInfo& l : c.layers()) {
    if (!l.present && l.is_mtp) continue;
    const LayerWeights w = c.layer(l.index);
    for (std::int64_t e = 0; e < w.problem.num_experts(); ++e) w.expert(e);
  }
}

/// The damaged copy fails with one line that names the culprit; the good one works right after.
void expect_fault(const CheckpointEditor& damaged, const std::string& fixture,
                  const std::vector<std::string>& says) {
  TempDir dir;
  damaged.write(dir);
  std::string text = test::usage_error_of([&] { read_all(dir.path()); });
  for (const std::string& part : says) EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(text, HasSubstr(dir.path()));
  EXPECT_NO_THROW(read_all(test::data_dir(fixture)));
}

struct BadConfig {
  const char* fixture;
  json patch;  // merged into config.json; null removes
  std::vector<std::string> says;
};

template <std::size_t n>
void expect_faults(const BadConfig (&cases)[n]) {
  for (const BadConfig& c : cases) {
    SCOPED_TRACE(std::string(c.fixture) + " " + c.patch.dump());
    CheckpointEditor m = raw(c.fixture);
    m.config.merge_patch(c.patch);
    expect_fault(m, c.fixture, c.says);
  }
}

TEST(Faults, ConfigFieldsOfTheBlock) {
  const BadConfig cases[] = {
      {"mixtral", {{"num_experts_per_tok", 9}}, {"num_experts_per_tok", "9", "8 experts"}},
      {"mixtral", {{"num_experts_per_tok", 0}}, {"num_experts_per_tok", "0"}},
      {"mixtral", {{"num_experts_per_tok", nullptr}}, {"num_experts_per_tok"}},
      {"mixtral", {{"hidden_size", "128"}}, {"hidden_size", "\"128\"", "integer"}},
      {"mixtral", {{"hidden_size", 128.5}}, {"hidden_size", "128.5"}},
      {"mixtral", {{"hidden_size", -128}}, {"hidden_size", "-128"}},
      {"mixtral",
       {{"hidden_size", std::numeric_limits<std::uint64_t>::max()}},
       {"hidden_size", "18446744073709551615"}},
      {"mixtral",
       {{"intermediate_size", std::int64_t(1) << 62}},
       {"intermediate_size", "4611686018427387904"}},
      {"mixtral", {{"num_local_experts", 4096}}, {"num_local_experts", "4096", "2048"}},
      {"mixtral", {{"num_local_experts", nullptr}}, {"num_local_experts"}},
      {"mixtral", {{"num_local_experts", json::array({8})}}, {"num_local_experts", "[8]"}},
      {"mixtral", {{"num_experts", 7}}, {"num_local_experts", "num_experts", "contradict"}},
      {"mixtral", {{"num_hidden_layers", 1 << 20}}, {"num_hidden_layers"}},
      {"mixtral", {{"hidden_act", "tanh"}}, {"hidden_act", "tanh", "silu"}},
      {"mixtral", {{"hidden_act", 3}}, {"hidden_act", "3"}},
      {"mixtral", {{"norm_topk_prob", false}}, {"norm_topk_prob", "false"}},
      {"mixtral", {{"n_group", 4}}, {"n_group", "4", "mixtral"}},
      {"mixtral", {{"routed_scaling_factor", 2.0}}, {"routed_scaling_factor", "2.0"}},
      {"mixtral", {{"n_shared_experts", 1}}, {"n_shared_experts"}},
      {"qwen3_moe", {{"swiglu_limit", 7.0}}, {"swiglu_limit", "7.0"}},
      {"qwen3_moe", {{"scoring_func", "sigmoid"}}, {"scoring_func"}},
      {"qwen3_moe", {{"norm_topk_prob", "true"}}, {"norm_topk_prob", "\"true\""}},
      {"qwen3_moe", {{"mlp_only_layers", json::array({3})}}, {"mlp_only_layers", "3"}},
      {"qwen3_moe", {{"mlp_only_layers", json::array({0})}}, {"layer 0", "dense", "experts"}},
      {"qwen3_moe", {{"decoder_sparse_step", 0}}, {"decoder_sparse_step"}},
      {"qwen3_moe", {{"zero_expert_num", 2}}, {"zero_expert_num"}},
      {"qwen2_moe",
       {{"shared_expert_intermediate_size", nullptr}},
       {"shared_expert_intermediate_size"}},
      {"deepseek_v2", {{"topk_method", "greedy"}}, {"topk_method", "n_group", "contradict"}},
      {"deepseek_v2",
       {{"norm_topk_prob", true}},
       {"norm_topk_prob", "routed_scaling_factor", "contradict"}},
      {"deepseek_v2", {{"topk_method", "noaux_tc"}}, {"topk_method", "noaux_tc"}},
      {"deepseek_v3", {{"scoring_func", "softmax"}}, {"scoring_func", "softmax", "sigmoid"}},
      {"deepseek_v3", {{"topk_method", "greedy"}}, {"topk_method", "greedy"}},
      {"deepseek_v3", {{"n_group", 3}}, {"n_group", "3", "16"}},
      {"deepseek_v3", {{"topk_group", 5}}, {"topk_group", "5", "4"}},
      {"deepseek_v3", {{"routed_scaling_factor", 0}}, {"routed_scaling_factor", "0"}},
      {"deepseek_v3", {{"routed_scaling_factor", "2.5"}}, {"routed_scaling_factor", "\"2.5\""}},
      {"deepseek_v3", {{"first_k_dense_replace", 1}}, {"layer 0", "dense"}},
      {"deepseek_v3", {{"num_nextn_predict_layers", -1}}, {"num_nextn_predict_layers"}},
      {"deepseek_v4",
       {{"num_hash_layers", 2}},
       {"num_hash_layers", "mlp_layer_types", "contradict"}},
      {"deepseek_v4",
       {{"mlp_layer_types", json::array({"dense", "moe"})}},
       {"mlp_layer_types", "dense"}},
      {"deepseek_v4",
       {{"mlp_layer_types", json::array({"moe"})}},
       {"mlp_layer_types", "num_hidden_layers"}},
      {"deepseek_v4", {{"expert_dtype", "fp4"}}, {"experts.0.w1.weight", "BF16", "I8"}},
      {"deepseek_v4", {{"expert_dtype", "int4"}}, {"expert_dtype", "int4"}},
      {"mixtral", {{"expert_dtype", "fp4"}}, {"expert_dtype", "fp4", "mixtral"}},
      {"deepseek_v4", {{"swiglu_limit", -1}}, {"clamp", "-1"}},
      {"gpt_oss", {{"swiglu_limit", 0}}, {"clamp", "0"}},
      {"gpt_oss", {{"experts_per_token", 2}}, {"experts_per_token", "contradict"}},
      {"nemotron_h",
       {{"hybrid_override_pattern", "M"}},
       {"layers_block_type", "hybrid_override_pattern"}},
      {"nemotron_h", {{"num_hidden_layers", 5}}, {"num_hidden_layers", "5"}},
      {"nemotron_h", {{"moe_latent_size", 64}}, {"up_proj.weight", "[96, 64]"}},
      {"mixtral", {{"moe_latent_size", 64}}, {"moe_latent_size", "64"}},
      {"nemotron_h", {{"mlp_hidden_act", "swish"}}, {"mlp_hidden_act", "swish", "relu2"}},
      {"nemotron_h", {{"layers_block_type", nullptr}}, {"layers_block_type"}},
      {"minimax_m2", {{"use_routing_bias", 1}}, {"use_routing_bias", "1"}},
      {"phimoe_soft", {{"num_experts_per_tok", 1}}, {"top_k", "1", "SparseMixer"}},
      {"phimoe_soft", {{"router_jitter_noise", -1}}, {"router_jitter_noise"}},
      {"afmoe", {{"score_func", "softmax"}}, {"score_func", "softmax"}},
      {"llama4_text", {{"moe_layers", json::array({1})}}, {"moe_layers", "1"}},
      {"mixtral", {{"model_type", "mixtrall"}}, {"mixtrall", "nearest: mixtral", "served:"}},
      {"mixtral", {{"model_type", "gpt2"}}, {"gpt2", "nearest: ", "qwen3_moe"}},
      {"mixtral", {{"model_type", nullptr}}, {"model_type"}},
      {"mixtral", {{"model_type", 3}}, {"model_type", "3"}},
  };
  expect_faults(cases);
}

TEST(Faults, FieldsThatDoNotConcernTheBlockAreIgnored) {
  CheckpointEditor m = raw("mixtral");
  m.config.merge_patch({{"sliding_window", "odd"},
                        {"rope_parameters", 7},
                        {"n_groups", 8},
                        {"invented", {{"a", 1}}},
                        {"n_group", 1},
                        {"routed_scaling_factor", 1.0},
                        {"shared_intermediate_size", 0}});
  TempDir dir;
  m.write(dir);
  EXPECT_NO_THROW(read_all(dir.path()));
}

TEST(Faults, QuantisationDeclarations) {
  auto quant = [](const json& block) { return json{{"quantization_config", block}}; };
  auto compressed = [&](const char* format, const json& weights = {{"num_bits", 8}}) {
    return quant({{"quant_method", "compressed-tensors"},
                  {"format", format},
                  {"config_groups", {{"group_0", {{"weights", weights}}}}}});
  };
  const BadConfig cases[] = {
      {"mixtral", quant({{"quant_method", "gptq"}, {"bits", 4}}), {"gptq", "served", "modelopt"}},
      {"mixtral", quant({{"quant_method", "awq"}}), {"awq", "nearest: modelopt: W4A16_NVFP4"}},
      {"mixtral", quant({{"quant_method", "quark"}}), {"quark", "nearest: mxfp4"}},
      {"mixtral", quant({{"quant_method", "bitsandbytes"}}), {"bitsandbytes", "nearest: "}},
      {"mixtral",
       quant({{"quant_method", "modelopt"}, {"quant_algo", "MXFP8"}}),
       {"MXFP8", "nearest: modelopt: FP8"}},
      {"mixtral", quant({{"quant_method", "compressed-tensors"}}), {"config_groups"}},
      {"mixtral", compressed("pack-quantized"), {"pack-quantized", "nearest: modelopt: W4A16"}},
      {"mixtral", compressed("int-quantized"), {"int-quantized", "nearest: fp8: FP8"}},
      {"mixtral", compressed("mxfp8-quantized"), {"mxfp8-quantized", "nearest: modelopt: FP8"}},
      {"mixtral",
       compressed("float-quantized", {{"num_bits", 4}}),
       {"group_0: weights", "num_bits", "4", "8"}},
      {"mixtral",
       compressed("float-quantized", {{"num_bits", 8}, {"symmetric", false}}),
       {"symmetric", "zero point"}},
      {"mixtral",
       compressed("float-quantized", {{"num_bits", 8}, {"strategy", "group"}}),
       {"strategy", "group"}},
      {"mixtral",
       compressed("nvfp4-pack-quantized", {{"num_bits", 4}, {"group_size", 32}}),
       {"group_size", "32", "16"}},
      {"mixtral",
       compressed("mxfp4-pack-quantized", {{"num_bits", 4}, {"group_size", 16}}),
       {"group_size", "16", "32"}},
      {"mixtral",
       quant({{"quant_method", "compressed-tensors"},
              {"ignore", {"re:^(?!.*experts).*"}},
              {"config_groups", {{"group_0", json::object()}}}}),
       {"(?!", "not served"}},
      {"mixtral", quant({{"quant_method", 4}}), {"quant_method", "4"}},
      {"mixtral", quant({{"bits", 4}}), {"quant_method"}},
      {"mixtral", quant("fp8"), {"quantization_config", "fp8"}},
      {"mixtral", {{"quantization", {{"bits", 4}}}}, {"'quantization'"}},
      {"mixtral", quant({{"quant_method", "mxfp4"}}), {"mxfp4"}},
      {"mixtral",
       quant({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
       {"w1.weight", "BF16", "U8"}},
      {"mixtral",
       quant({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}),
       {"w1.weight", "BF16", "F8_E4M3"}},
      {"deepseek_v3_fp8_block",
       {{"quantization_config", nullptr}},
       {"gate_proj.weight", "F8_E4M3", "BF16"}},
      {"deepseek_v3_fp8_block",
       quant({{"weight_block_size", {64, 64}}}),
       {"weight_block_size", "[64,64]"}},
      {"deepseek_v3_fp8_block",
       quant({{"weight_block_size", nullptr}}),
       {"weight_scale' of type F32"}},
      {"deepseek_v3_fp8_block", quant({{"fmt", "e5m2"}}), {"fmt", "e5m2"}},
      {"deepseek_v3_fp8_block", quant({{"scale_fmt", "ue4m3"}}), {"scale_fmt", "ue4m3"}},
      {"deepseek_v3_fp8_block",
       quant({{"activation_scheme", "static"}}),
       {"activation_scheme", "static"}},
      {"deepseek_v3_fp8_block", quant({{"modules_to_not_convert", {"re:.*gate"}}}), {"re:.*gate"}},
      {"deepseek_v3_fp8_block",
       quant({{"modules_to_not_convert", "lm_head"}}),
       {"modules_to_not_convert", "lm_head"}},
      {"deepseek_v3_fp8_block",
       quant({{"modules_to_not_convert", {"model.layers.0.mlp.experts.3.up_proj"}}}),
       {"experts.3.up_proj", "none", "share"}},
      {"qwen3_moe_nvfp4", quant({{"quant_algo", "INT4_AWQ"}}), {"INT4_AWQ", "served"}},
      {"qwen3_moe_nvfp4", quant({{"quant_algo", nullptr}}), {"quant_algo"}},
      {"qwen3_moe_nvfp4", quant({{"group_size", 32}}), {"group_size", "32", "16"}},
      {"qwen3_moe_nvfp4",
       quant({{"config_groups", {{"group_0", {{"weights", {{"group_size", 32}}}}}}}}),
       {"group_size", "32"}},
      {"qwen3_moe_nvfp4", quant({{"quant_algo", "MIXED_PRECISION"}}), {"quantized_layers"}},
      {"qwen3_moe_nvfp4",
       quant({{"quantized_layers", {{"model.layers.0.mlp.experts", 3}}}}),
       {"model.layers.0.mlp.experts", "3"}},
      {"qwen3_moe_nvfp4",
       quant({{"quantized_layers", {{"model.layers.0.mlp.experts", {{"quant_algo", "W8A8"}}}}}}),
       {"W8A8"}},
      {"qwen3_moe_nvfp4",
       quant({{"ignore", {"model.layers.0.mlp.experts*"}}}),
       {"gate_proj.weight", "U8"}},
      {"qwen3_moe_nvfp4", quant({{"quant_algo", "FP8"}}), {"gate_proj.weight", "U8", "F8_E4M3"}},
      {"gpt_oss_mxfp4", {{"quantization_config", nullptr}}, {"gate_up_proj"}},
      {"gpt_oss", quant({{"quant_method", "mxfp4"}}), {"gate_up_proj_blocks", "missing"}},
      {"gpt_oss",
       quant({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}),
       {"stacks", "fp8_block_scales"}},
  };
  expect_faults(cases);
}

struct BadTensors {
  const char* fixture;
  std::function<void(CheckpointEditor&)> damage;
  std::vector<std::string> says;
};

std::function<void(CheckpointEditor&)> drop(const std::string& name) {
  return [name](CheckpointEditor& m) { ASSERT_EQ(m.tensors.erase(name), 1u) << name; };
}

std::function<void(CheckpointEditor&)> poke(const std::string& name, std::size_t at,
                                            const std::string& bytes) {
  return [=](CheckpointEditor& m) { m.tensors.at(name).bytes.replace(at, bytes.size(), bytes); };
}

std::function<void(CheckpointEditor&)> reshape(const std::string& name,
                                               const std::vector<std::int64_t>& shape) {
  return [=](CheckpointEditor& m) { m.tensors.at(name).shape = shape; };
}

std::function<void(CheckpointEditor&)> retype(const std::string& name, const std::string& dtype) {
  return [=](CheckpointEditor& m) { m.tensors.at(name).dtype = dtype; };
}

std::function<void(CheckpointEditor&)> add(const std::string& name) {
  return [=](CheckpointEditor& m) { m.tensors[name] = {"F32", {1}, std::string(4, '\0')}; };
}

const std::string kMlp = "model.layers.0.mlp.";
const std::string kSparse = "model.layers.0.block_sparse_moe.";
constexpr std::int64_t kGptOssUp = 2 * 96;  // columns of gate_up_proj
const float kNan = std::numeric_limits<float>::quiet_NaN(),
            kInf = std::numeric_limits<float>::infinity();

std::vector<BadTensors> missing_and_misshaped() {
  return {
      {"mixtral",
       drop(kSparse + "experts.5.w3.weight"),
       {"experts.5.w3.weight", "missing", "[96, 128]"}},
      {"mixtral", drop(kSparse + "experts.0.w1.weight"), {"experts.0.w1.weight", "missing"}},
      {"mixtral",
       drop(kSparse + "gate.weight"),
       {"block_sparse_moe.gate.weight", "missing", "[8, 128]"}},
      {"mixtral",
       reshape(kSparse + "experts.5.w3.weight", {128, 96}),
       {"experts.5.w3.weight", "[128, 96]", "[96, 128]"}},
      {"mixtral", reshape(kSparse + "gate.weight", {8 * 128}), {"gate.weight", "[1024]"}},
      {"mixtral",
       retype(kSparse + "experts.5.w3.weight", "I16"),
       {"experts.5.w3.weight", "I16", "BF16"}},
      {"mixtral",
       retype(kSparse + "experts.5.w3.weight", "F16"),
       {"experts.5.w3.weight", "fp16", "bf16", "share"}},
      {"mixtral",
       [](CheckpointEditor& m) { m.config["num_local_experts"] = 9; },
       {"gate.weight", "[8, 128]", "[9, 128]"}},
      {"mixtral",
       [](CheckpointEditor& m) { m.config["num_local_experts"] = 7; },
       {"gate.weight", "[8, 128]", "[7, 128]"}},
      {"mixtral",
       [](CheckpointEditor& m) { m.rename_prefix("model.layers.0", "model.layers.1"); },
       {"layers.0.block_sparse_moe.gate.weight", "missing"}},
      {"qwen2_moe",
       drop(kMlp + "shared_expert_gate.weight"),
       {"shared_expert_gate.weight", "missing"}},
      {"qwen2_moe",
       drop(kMlp + "shared_expert.up_proj.weight"),
       {"shared_expert.up_proj.weight", "missing"}},
      {"qwen2_moe",
       [](CheckpointEditor& m) { m.config["shared_expert_intermediate_size"] = 65; },
       {"shared_expert", "[64, 128]", "[65, 128]"}},
      {"deepseek_v3",
       drop(kMlp + "gate.e_score_correction_bias"),
       {"e_score_correction_bias", "missing", "[16]"}},
      {"deepseek_v4", drop("model.layers.0.ffn.gate.tid2eid"), {"gate.tid2eid", "missing"}},
      {"deepseek_v4",
       reshape("model.layers.0.ffn.gate.tid2eid", {32, 8}),
       {"gate.tid2eid", "[32, 8]", "[64, 4]"}},
      {"gpt_oss", drop(kMlp + "experts.down_proj_bias"), {"experts.down_proj_bias", "missing"}},
      {"gpt_oss",
       drop(kMlp + "experts.gate_up_proj"),
       {"experts.gate_up_proj", "missing", "[8, 128, 192]"}},
      {"gpt_oss",
       reshape(kMlp + "experts.gate_up_proj", {8, 192, 128}),
       {"experts.gate_up_proj", "[8, 192, 128]"}},
      {"gpt_oss", drop(kMlp + "router.bias"), {"router.bias", "missing"}},
      {"gpt_oss_mxfp4", drop(kMlp + "experts.down_proj_scales"), {"down_proj_scales", "missing"}},
      {"qwen3_moe_nvfp4",
       drop(kMlp + "experts.3.up_proj.weight_scale"),
       {"experts.3.up_proj.weight_scale'", "missing", "[192, 16]"}},
      {"qwen3_moe_nvfp4",
       drop(kMlp + "experts.3.up_proj.weight_scale_2"),
       {"experts.3.up_proj.weight_scale_2", "missing"}},
      {"qwen3_moe_nvfp4",
       drop(kMlp + "experts.3.up_proj.input_scale"),
       {"experts.3.up_proj.input_scale", "missing"}},
      {"deepseek_v3_fp8_block",
       drop(kMlp + "experts.3.up_proj.weight_scale_inv"),
       {"experts.3.up_proj.weight_scale_inv", "missing", "[2, 2]"}},
      {"deepseek_v3_fp8_block",
       reshape(kMlp + "experts.3.up_proj.weight_scale_inv", {4, 1}),
       {"experts.3.up_proj.weight_scale_inv", "[4, 1]"}},
      {"deepseek_v3_fp8_block",
       drop(kMlp + "shared_experts.up_proj.weight_scale_inv"),
       {"shared_experts.up_proj.weight_scale_inv"}},
  };
}

std::vector<BadTensors> unknown_and_bad_values() {
  const std::string scale = kMlp + "experts.3.up_proj.weight_scale_inv";
  auto f32 = [](float v) { return test::f32_bytes({v}); };
  return {
      {"mixtral", add(kSparse + "experts.5.w4.weight"), {"experts.5.w4.weight", "do not know"}},
      {"mixtral", add(kSparse + "experts.8.w1.weight"), {"experts.8.w1.weight"}},
      {"mixtral", add(kSparse + "gate.bias"), {"gate.bias"}},
      {"mixtral", add(kSparse + "experts.1.w1.weight_scale"), {"experts.1.w1.weight_scale"}},
      {"mixtral", add(kSparse + "experts.gate_up_proj"), {"experts.gate_up_proj"}},
      {"qwen3_moe", add(kMlp + "shared_expert.up_proj.weight"), {"shared_expert.up_proj.weight"}},
      {"qwen3_moe_nvfp4", add(kMlp + "experts.0.gate_proj.weight_scale_3"), {"weight_scale_3"}},
      {"qwen3_moe_nvfp4", add(kMlp + "experts.0.gate_proj.pre_quant_scale"), {"pre_quant_scale"}},
      {"deepseek_v4", add("model.layers.0.ffn.gate.bias"), {"layers.0.ffn.gate.bias"}},
      {"deepseek_v3_fp8_block",
       poke(scale, 4, f32(kNan)),
       {"experts.3.up_proj.weight_scale_inv", "nan", "1 of 4"}},
      {"deepseek_v3_fp8_block",
       poke(scale, 12, f32(-0.5f)),
       {"experts.3.up_proj.weight_scale_inv", "-0.5"}},
      {"deepseek_v3_fp8_block",
       poke(scale, 12, f32(kInf)),
       {"experts.3.up_proj.weight_scale_inv", "inf"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.weight_scale", 77, "\x7f"),
       {"experts.3.up_proj.weight_scale'", "nan"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.weight_scale", 77, "\xb8"),
       {"experts.3.up_proj.weight_scale'", "-1"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.weight_scale_2", 0, f32(kNan)),
       {"experts.3.up_proj.weight_scale_2", "nan"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.weight_scale_2", 0, f32(-1)),
       {"experts.3.up_proj.weight_scale_2", "-1"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.input_scale", 0, f32(0)),
       {"experts.3.up_proj.input_scale", "0"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.input_scale", 0, f32(kNan)),
       {"experts.3.up_proj.input_scale", "nan"}},
      {"gpt_oss_mxfp4",
       poke(kMlp + "experts.down_proj_scales", 999, "\xff"),
       {"down_proj_scales", "nan"}},
      {"deepseek_v3",
       poke(kMlp + "gate.e_score_correction_bias", 6, "\xc0\x7f"),
       {"e_score_correction_bias", "element 3", "nan"}},
      {"deepseek_v4",
       poke("model.layers.0.ffn.gate.tid2eid", 8 * 9, std::string("\x10\0\0\0\0\0\0\0", 8)),
       {"tid2eid", "element 9", "16", "15"}},
      {"deepseek_v4",
       poke("model.layers.0.ffn.gate.tid2eid", 0, std::string(8, '\xff')),
       {"tid2eid", "element 0", "-1"}},
  };
}

/// Elements that no weight can be, in every type and order in which weights stand.
std::vector<BadTensors> bad_weights() {
  const std::string bf16_nan = "\xc0\x7f", bf16_inf("\x80\xff", 2), fp8_nan = "\xff";
  auto at = [](std::int64_t row, std::int64_t col, std::int64_t cols) { return row * cols + col; };
  return {
      {"mixtral",
       poke(kSparse + "experts.5.w3.weight", std::size_t(2 * at(7, 3, 128)), bf16_nan),
       {"experts.5.w3.weight', expert 5: the weight at row 7, column 3 is nan"}},
      {"mixtral",
       poke(kSparse + "experts.0.w2.weight", 0, bf16_inf),
       {"experts.0.w2.weight', expert 0: the weight at row 0, column 0 is -inf"}},
      {"gpt_oss",
       poke(kMlp + "experts.gate_up_proj",
            std::size_t(2 * (1 * 128 * kGptOssUp + at(5, 2 * 9 + 1, kGptOssUp))), bf16_nan),
       {"experts.gate_up_proj', expert 1: the weight at row 9, column 5 is nan"}},
      {"gpt_oss",
       poke(kMlp + "experts.gate_up_proj_bias", 6, bf16_nan),
       {"experts.gate_up_proj_bias': element 3 is nan"}},
      {"deepseek_v3_fp8_block",
       poke(kMlp + "experts.3.up_proj.weight", 2, fp8_nan),
       {"experts.3.up_proj.weight', expert 3: the weight at row 0, column 2 is"}},
      {"deepseek_v3",
       poke(kMlp + "shared_experts.up_proj.weight", 4, bf16_nan),
       {"shared_experts.up_proj.weight': the weight at row 0, column 2 is nan"}},
      {"qwen3_moe_nvfp4",
       poke(kMlp + "experts.3.up_proj.input_scale", 0, test::f32_bytes({1e-39f})),
       {"experts.3.up_proj.input_scale", "2^-126 to 2^126"}},
  };
}

TEST(Faults, Tensors) {
  std::vector<BadTensors> all = missing_and_misshaped();
  for (std::vector<BadTensors> more : {unknown_and_bad_values(), bad_weights()})
    all.insert(all.end(), more.begin(), more.end());
  for (const BadTensors& c : all) {
    SCOPED_TRACE(std::string(c.fixture) + " " + c.says[0]);
    CheckpointEditor m = raw(c.fixture);
    c.damage(m);
    expect_fault(m, c.fixture, c.says);
  }
}

TEST(Faults, TheLineCountsTheOtherFaults) {
  CheckpointEditor m = raw("mixtral");
  for (const char* w : {"w1", "w2", "w3"}) m.tensors.erase(kSparse + "experts.2." + w + ".weight");
  expect_fault(m, "mixtral", {"experts.2.w1.weight", "2 more"});
}

TEST(Faults, LayersThatDoNotExist) {
  Checkpoint c = Checkpoint::open(test::data_dir("deepseek_v3"));
  EXPECT_THAT(test::usage_error_of([&] { c.layer(7); }), HasSubstr("layer 7"));
  EXPECT_THAT(test::usage_error_of([&] { c.layer(-1); }), HasSubstr("layer -1"));
  EXPECT_THAT(test::usage_error_of([&] { c.layer(1); }), HasSubstr("MTP"));
  EXPECT_NO_THROW(c.layer(0));
}

// A path that cannot be looked at is not an absent one; root may enter every folder.
TEST(Faults, WhatCannotBeLookedAtIsNotAbsent) {
  TempDir dir;
  raw("mixtral").write(dir);
  const std::string& path = dir.path();
  std::filesystem::create_symlink("loop", path + "/loop");
  for (const auto& [name, why] :
       std::map<std::string, std::string>{{path + "/config.json/deeper", "Not a directory"},
                                          {path + "/loop", "Too many levels"},
                                          {path + "/" + std::string(300, 'x'), "too long"}})
    EXPECT_THAT(test::usage_error_of([&, at = name] { Checkpoint::open(at); }), HasSubstr(why));
  EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(path + "/none"); }),
              HasSubstr("does not exist"));
  EXPECT_THAT(test::usage_error_of([&] { stands_despite(EACCES, path); }),
              HasSubstr("Permission denied"));
  EXPECT_FALSE(stands_despite(ENOENT, path));
  // The same for the files of a checkpoint.
  std::filesystem::rename(path + "/config.json", path + "/config");
  std::filesystem::create_symlink("config.json", path + "/config.json");
  EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(path); }), HasSubstr("Too many levels"));
  std::filesystem::remove(path + "/config.json");
  std::filesystem::rename(path + "/config", path + "/config.json");
  EXPECT_NO_THROW(read_all(path));
}

// A hub's folder is made of links into a store, which can be lost or moved.
TEST(Faults, ALinkThatLeadsNowhereIsNamed) {
  for (const char* name : {"config.json", "model.safetensors", "model-0.safetensors",
                           "model.safetensors.index.json", "hf_quant_config.json"}) {
    TempDir dir;
    const bool shard = std::string(name) == "model-0.safetensors";
    shard ? raw("mixtral").write_sharded(dir, 2) : raw("mixtral").write(dir);
    const std::string path = dir.path() + "/" + name;
    std::filesystem::remove(path);
    std::filesystem::create_symlink("../blobs/none", path);
    const std::string says = path + ": is a link to ../blobs/none, where nothing stands";
    EXPECT_THAT(test::usage_error_of([&] { Checkpoint::open(dir.path()); }), HasSubstr(says));
    EXPECT_THAT(test::usage_error_of([&] { SafetensorsFile::open(path); }), HasSubstr(says));
  }
}

TEST(Faults, FilesThatAreNoCheckpoint) {
  EXPECT_THAT(test::usage_error_of(
                  [] { Checkpoint::open(test::data_dir("mixtral") + "/model.safetensors"); }),
              HasSubstr("folder"));
  EXPECT_THAT(test::usage_error_of([] { Checkpoint::open(""); }), HasSubstr("folder"));
  TempDir dir;
  raw("mixtral").write(dir);
  std::string file = test::slurp(dir.path() + "/model.safetensors");
  dir.write("model.safetensors", file.substr(0, file.size() / 2));
  EXPECT_THAT(test::usage_error_of([&] { read_all(dir.path()); }), HasSubstr("data bytes"));
  dir.write("model.safetensors", file);
  EXPECT_NO_THROW(read_all(dir.path()));
  dir.write("quantize_config.json", "{}");
  EXPECT_THAT(test::usage_error_of([&] { read_all(dir.path()); }),
              HasSubstr("quantize_config.json"));
}

}  // namespace
}  // namespace switchyard::checkpoint
