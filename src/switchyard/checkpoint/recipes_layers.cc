// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/recipe_tools.h"
#include "switchyard/checkpoint/recipes.h"

namespace switchyard::checkpoint::recipes {
namespace {

using Flags = std::vector<bool>;

Flags flags(std::int64_t layers, bool value) { return Flags(std::size_t(layers), value); }

void mark(Flags& flags, const std::vector<std::int64_t>& layers, bool value, const Config& c,
          std::string_view field) {
  for (std::int64_t l : layers) {
    require(l < std::int64_t(flags.size()), c.where(), ": '", field, "' names layer ", l,
            ", the model has layers 0 .. ", flags.size() - 1, "; correct the list");
    flags[std::size_t(l)] = value;
  }
}

Flags from(std::int64_t first, std::int64_t layers) {
  Flags out = flags(layers, false);
  for (std::int64_t l = first; l < layers; ++l) out[std::size_t(l)] = true;
  return out;
}

/// moe_layer_freq as one 0 or 1 per layer; nothing when it is one number or absent.
std::optional<Flags> listed_frequency(const Config& c) {
  const nlohmann::json* value = c.find("moe_layer_freq");
  if (!value || !value->is_array()) return {};
  auto list = c.integers("moe_layer_freq").value_or(std::vector<std::int64_t>{});
  bool bits = std::all_of(list.begin(), list.end(), [](std::int64_t v) { return v <= 1; });
  require(bits && std::int64_t(list.size()) == num_layers(c), c.where(), ": 'moe_layer_freq' is ",
          show_json(*value), ", must be one 0 or 1 for each of the ", num_layers(c),
          " layers, or one number");
  return Flags(list.begin(), list.end());
}

/// mlp_layer_types goes first, as the published readers do it.
Flags dense_then_sparse(const Config& c, std::int64_t first_default) {
  std::int64_t first = c.integer("first_k_dense_replace", 0, kMaxLayers).value_or(first_default);
  auto listed = listed_frequency(c);
  std::int64_t step = listed ? 1 : c.integer("moe_layer_freq", 1, kMaxLayers).value_or(1);
  auto words = layer_words(c, "mlp_layer_types", "dense|sparse|moe");
  Flags out = flags(num_layers(c), false);
  for (std::size_t l = 0; l < out.size(); ++l)
    out[l] = words.empty() ? std::int64_t(l) >= first && std::int64_t(l) % step == 0
                           : words[l] != "dense";
  return words.empty() && listed ? *listed : out;
}

Flags are_moe(const std::vector<std::string>& types) {
  Flags out;
  for (const std::string& t : types) out.push_back(t == "moe");
  return out;
}

/// "3,4,5" as numbers.
std::vector<std::int64_t> parse_indices(const Config& c, std::string_view field,
                                        const std::string& text) {
  std::vector<std::int64_t> out;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    std::int64_t value = -1;
    auto [next, error] = std::from_chars(at, end, value);
    bool ok = error == std::errc() && value >= 0 && (next == end || *next == ',');
    require(ok, c.where(), ": '", field, "' is \"", show_name(text),
            "\", must be layer indices with commas between them; the value is not served");
    out.push_back(value);
    at = next == end ? end : next + 1;
  }
  return out;
}

}  // namespace

std::int64_t num_layers(const Config& c) {
  return c.required("num_hidden_layers", 1, kMaxLayers, "how many layers the model has");
}

std::vector<std::string> layer_words(const Config& c, std::string_view field,
                                     std::string_view served) {
  auto words = c.texts(field);
  if (!words) return {};
  require(std::int64_t(words->size()) == num_layers(c), c.where(), ": '", field, "' has ",
          words->size(), " entries and 'num_hidden_layers' is ", num_layers(c),
          ", which contradict each other");
  auto known = alternatives(served);
  for (const std::string& w : *words)
    require(std::find(known.begin(), known.end(), w) != known.end(), c.where(), ": '", field,
            "' holds \"", show_name(w), "\", must be one of ", served, "; the value is not served");
  return *words;
}

Flags all_layers(const Config& c) { return flags(num_layers(c), true); }

Flags dbrx_layers(const Config& c) {
  return flags(c.required("n_layers|num_hidden_layers", 1, kMaxLayers, "how many layers there are"),
               true);
}

Flags longcat_layers(const Config& c) {
  auto layers = c.integer("num_layers", 1, kMaxLayers);
  return flags(layers ? *layers : num_layers(c), true);
}

Flags three_dense_layers(const Config& c) { return dense_then_sparse(c, 3); }
Flags one_dense_layer(const Config& c) { return dense_then_sparse(c, 1); }
Flags no_dense_layer(const Config& c) { return dense_then_sparse(c, 0); }

Flags qwen_layers(const Config& c) {
  std::int64_t step = c.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  Flags out = flags(num_layers(c), false);
  for (std::size_t l = 0; l < out.size(); ++l) out[l] = (std::int64_t(l) + 1) % step == 0;
  if (auto dense = c.integers("mlp_only_layers")) mark(out, *dense, false, c, "mlp_only_layers");
  return out;
}

Flags llama4_layers(const Config& c) {
  std::int64_t step = c.integer("interleave_moe_layer_step", 0, kMaxLayers).value_or(1);
  Flags out = flags(num_layers(c), false);
  if (auto sparse = c.integers("moe_layers")) {
    mark(out, *sparse, true, c, "moe_layers");
    return out;
  }
  for (std::size_t l = 0; step > 0 && l < out.size(); ++l)
    out[l] = (std::int64_t(l) + 1) % step == 0;
  return out;
}

Flags afmoe_layers(const Config& c) {
  return from(c.integer("num_dense_layers", 0, kMaxLayers).value_or(0), num_layers(c));
}

Flags lfm2_layers(const Config& c) {
  return from(c.integer("num_dense_layers", 0, kMaxLayers).value_or(2), num_layers(c));
}

Flags hunyuan_layers(const Config& c) {
  return from(c.integer("moe_layer_num_skipped", 0, kMaxLayers).value_or(0), num_layers(c));
}

Flags gemma4_layers(const Config& c) {
  return flags(num_layers(c), c.flag("enable_moe_block", false));
}

Flags nemotron_layers(const Config& c) {
  Flags out;
  auto types = c.texts("layers_block_type");
  std::string letters = c.text("hybrid_override_pattern", "");
  require(types || !letters.empty(), c.where(),
          ": has neither 'layers_block_type' nor 'hybrid_override_pattern'; the MoE layers are "
          "unknown, add one");
  if (types) out = are_moe(*types);
  Flags by_letter;
  for (char letter : letters) by_letter.push_back(letter == 'E');
  require(!types || letters.empty() || out == by_letter, c.where(),
          ": 'layers_block_type' and 'hybrid_override_pattern' name different MoE layers, which "
          "contradict "
          "each other; keep one");
  if (!types) out = by_letter;
  auto count = c.integer("num_hidden_layers", 1, kMaxLayers);
  require(!count || *count == std::int64_t(out.size()), c.where(), ": 'num_hidden_layers' is ",
          count.value_or(0), " and the layer pattern has ", out.size(),
          " entries, which contradict each other");
  return out;
}

Flags jamba_layers(const Config& c) {
  std::int64_t period = c.integer("expert_layer_period", 1, kMaxLayers).value_or(2);
  std::int64_t offset = c.integer("expert_layer_offset", 0, kMaxLayers).value_or(1);
  require(offset < period, c.where(), ": 'expert_layer_offset' is ", offset,
          " and 'expert_layer_period' is ", period, "; the offset must be below the period");
  Flags out = flags(num_layers(c), false);
  for (std::size_t l = 0; l < out.size(); ++l) out[l] = std::int64_t(l) % period == offset;
  return out;
}

Flags ernie_layers(const Config& c) {
  std::int64_t interval = c.integer("moe_layer_interval", 1, kMaxLayers).value_or(1);
  std::int64_t first = c.integer("moe_layer_start_index", 0, kMaxLayers).value_or(1);
  std::int64_t last = c.integer("moe_layer_end_index", -1, kMaxLayers).value_or(-1);
  Flags out = flags(num_layers(c), false);
  for (std::int64_t l = first; l < std::int64_t(out.size()); ++l)
    out[std::size_t(l)] = (l + 1) % interval == 0 && (last < 0 || l <= last);
  return out;
}

Flags step_layers(const Config& c) {
  std::string text = c.text("moe_layers_enum", "");
  if (text.empty()) return from(1, num_layers(c));
  Flags out = flags(num_layers(c), false);
  mark(out, parse_indices(c, "moe_layers_enum", text), true, c, "moe_layers_enum");
  return out;
}

Flags next_token_layers(const Config& c) {
  auto count = c.integer("num_nextn_predict_layers|num_mtp_modules", 0, kMaxMtp);
  return flags(count.value_or(0), true);
}

Flags nemotron_mtp_layers(const Config& c) {
  std::int64_t count = c.integer("num_nextn_predict_layers", 0, kMaxMtp).value_or(0);
  auto types = c.texts("mtp_layers_block_type");
  Flags pattern = types ? are_moe(*types) : Flags{}, out;
  for (std::int64_t i = 0; i < count; ++i) out.insert(out.end(), pattern.begin(), pattern.end());
  return out;
}

Flags no_mtp_layers(const Config&) { return {}; }

}  // namespace switchyard::checkpoint::recipes
