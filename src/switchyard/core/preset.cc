// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/preset.h"

#include <array>

#include "switchyard/base/nearest.h"

namespace switchyard {
namespace {

using Method = RoutingMethodType;

struct Preset {
  std::string_view name;
  std::int64_t hidden, inter, experts, top_k;
  Method method = Method::kRenormalize;
  std::int64_t shared = 0;  // experts of width `inter`
  float factor = 1;
  std::int64_t n_group = 1, topk_group = 1;
  bool gpt_oss = false;  // expert biases and SwigluBias 1.702 / 1 / 7
};

constexpr std::array<Preset, 11> kPresets = {{
    {"mixtral-8x7b", 4096, 14336, 8, 2},
    {"qwen3-30b-a3b", 2048, 768, 128, 8},
    {"qwen3-235b-a22b", 4096, 1536, 128, 8},
    {"deepseek-v3", 7168, 2048, 256, 8, Method::kDeepSeekV3, 1, 2.5f, 8, 4},
    {"kimi-k2", 7168, 2048, 384, 8, Method::kDeepSeekV3, 1, 2.827f},
    {.name = "gpt-oss-20b",
     .hidden = 2880,
     .inter = 2880,
     .experts = 32,
     .top_k = 4,
     .gpt_oss = true},
    {.name = "gpt-oss-120b",
     .hidden = 2880,
     .inter = 2880,
     .experts = 128,
     .top_k = 4,
     .gpt_oss = true},
    {"llama4-maverick", 5120, 8192, 128, 1, Method::kLlama4, 1},
    {"minimax-m2", 3072, 1536, 256, 8, Method::kMiniMax2},
    {"glm-4.5", 5120, 1536, 160, 8, Method::kDeepSeekV3, 1, 2.5f},
    {"tiny", 128, 96, 8, 2},
}};

Problem to_problem(const Preset& preset) {
  Problem p;
  p.hidden = preset.hidden;
  p.inter = preset.inter;
  p.routing = make_routing(preset.method, preset.experts, preset.top_k);
  p.routing.n_group = preset.n_group;
  p.routing.topk_group = preset.topk_group;
  p.routed_scaling_factor = preset.factor;
  p.num_shared = preset.shared;
  p.shared_inter = preset.shared * preset.inter;
  p.expert_bias = preset.gpt_oss;
  if (preset.gpt_oss) p.activation = SwigluBias{1.702f, 1.0f, PerExpert(7.0f)};
  return p;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> out;
  for (const Preset& preset : kPresets) out.emplace_back(preset.name);
  return out;
}

Problem make_preset(std::string_view name) {
  std::string word = normalise_word(name);
  for (const Preset& preset : kPresets)
    if (preset.name == word) return to_problem(preset);
  std::vector<std::string> known = preset_names();
  std::string near = nearest(word, known).empty() ? "" : suggest(word, known) + " ";
  throw UsageError(cat("preset '", name, "' is unknown; ", near, "known: ", join(known)));
}

}  // namespace switchyard
