// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/loader.h"

#include <cmath>

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/experts.h"
#include "switchyard/checkpoint/index.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/layer_list.h"
#include "switchyard/checkpoint/problem_reader.h"

namespace switchyard::checkpoint {

using nlohmann::json;

namespace {

const std::vector<TensorType> kFloats = {TensorType::kF32, TensorType::kBf16, TensorType::kF16};

/// The model's object: text_config of a multimodal wrapper, with what stands outside it.
json model_object(const json& root) {
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    auto nested = root.find(key);
    if (nested == root.end() || !nested->is_object()) continue;
    json out = *nested;
    for (const char* outer : {"model_type", "quantization_config", "dtype", "torch_dtype"})
      if (!out.contains(outer) && root.contains(outer)) out[outer] = root[outer];
    return out;
  }
  return root;
}

Quantization read_quantization(const CheckpointFiles& files, const json& model,
                               std::vector<std::string>& notices) {
  const std::string where = files.directory + "/config.json";
  for (const char* key : {"quantization", "compression_config"})
    require(
        !model.contains(key) || model[key].is_null(), where, ": declares its quantisation under '",
        key,
        "', a schema that is not served; served: quantization_config with fp8, mxfp4 or modelopt");
  const json* block =
      model.contains("quantization_config") ? &model["quantization_config"] : nullptr;
  bool declared = (block && !block->is_null()) || files.hf_quant;
  require(declared || !files.legacy_quantize_config, files.directory,
          ": holds quantize_config.json (GPTQ or AWQ), a schema that is not served; served: fp8, "
          "mxfp4, modelopt");
  return Quantization::parse(block, files.hf_quant ? &*files.hf_quant : nullptr, files.directory,
                             notices);
}

std::vector<float> read_router_floats(BlockReader& reader, std::string_view names,
                                      std::vector<std::int64_t> shape, std::string_view what,
                                      std::vector<std::string>* notices) {
  std::string name;
  const Tensor* t = reader.want(names, {kFloats, std::move(shape)}, &name);
  if (!t) return {};
  if (notices && t->type != TensorType::kF32)
    notices->push_back(
        cat(what, " '", name, "' is stored as ", to_string(t->type), "; read as fp32"));
  std::vector<float> out = read_floats(*t, name);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(out[i])) continue;
    reader.fault(FindingKind::kBadScale, name,
                 cat("tensor '", name, "': element ", i, " is ", out[i],
                     ", must be finite; the checkpoint is damaged"));
    break;
  }
  return out;
}

std::vector<std::int32_t> read_hash_table(BlockReader& reader, const BlockContext& c,
                                          const Config& config, std::int64_t& vocab) {
  const Tensor* stored = reader.peek(c.family.hash_table);
  std::int64_t rows = stored && stored->shape.size() == 2 ? stored->shape[0] : 1;
  vocab = config.integer("vocab_size", 1, std::int64_t(1) << 31).value_or(rows);
  std::string name;
  const Tensor* t =
      reader.want(c.family.hash_table,
                  {{TensorType::kI64, TensorType::kI32}, {vocab, c.problem.top_k()}}, &name);
  if (!t) return {};
  try {
    return read_ids(*t, c.problem.num_experts(), cat("tensor '", name, "'"));
  } catch (const UsageError& e) {
    reader.fault(FindingKind::kBadScale, name, e.what());
    return {};
  }
}

RouterWeights read_router(BlockContext& c, const Config& config,
                          std::vector<std::string>& notices) {
  const RoutingSpec& r = c.problem.routing;
  std::int64_t ids = r.num_experts + r.zero_experts;
  RouterWeights out;
  out.weight = read_router_floats(c.reader, c.family.router, {ids, c.problem.hidden},
                                  "router weight", nullptr);
  if (!c.family.logit_bias.empty())
    out.logit_bias =
        read_router_floats(c.reader, c.family.logit_bias, {ids}, "router bias", nullptr);
  if (r.choice_bias) {
    out.choice_bias =
        read_router_floats(c.reader, c.family.choice_bias, {ids}, "correction bias", &notices);
  } else if (!c.family.choice_bias.empty() && r.choice == ChoiceRule::kTopK &&
             c.reader.peek(c.family.choice_bias)) {
    c.reader.ignore(c.family.choice_bias);
    notices.push_back(
        "a correction bias is stored and switched off by config.json; it is not applied");
  }
  if (r.choice == ChoiceRule::kHash)
    out.hash_table = read_hash_table(c.reader, c, config, out.vocab);
  return out;
}

std::optional<SharedExpert> read_shared(BlockContext& c, const std::shared_ptr<const void>& owner) {
  auto sources = find_shared(c);
  SharedExpert out;
  if (c.problem.shared_gate)
    out.gate = read_router_floats(c.reader, c.family.shared_gate, {1, c.problem.hidden},
                                  "shared gate", nullptr);
  if (!sources) return {};
  out.weights = sources->weights.read(owner);
  out.format = std::string(sources->scheme.format);
  out.activation_quant = sources->scheme.activation;
  out.activation = c.problem.activation;
  return out;
}

std::int64_t count_f32(const std::vector<ExpertSources>& experts) {
  std::int64_t count = 0;
  for (const ExpertSources& e : experts)
    for (const WeightSource* w : {e.gate ? &*e.gate : nullptr, &e.up, &e.down})
      count +=
          w && w->layout.scale == formats::ScaleType::kNone && w->codes.type == TensorType::kF32;
  return count;
}

}  // namespace

/// Everything that layers share; immutable once open() returns.
struct Checkpoint::State {
  std::string path;
  std::shared_ptr<const TensorTable> tensors;
  Config config;
  std::string model_type;
  const Family* family = nullptr;
  Quantization quantization;
  std::vector<LayerInfo> layers;
  std::vector<Problem> problems;  // beside layers
  std::vector<std::string> notices;
};

Checkpoint Checkpoint::open(const std::string& path) {
  CheckpointFiles files = open_checkpoint_files(path);
  json model = model_object(files.config);
  auto state = std::make_shared<State>(State{.path = path,
                                             .tensors = files.tensors,
                                             .config = Config(model, path + "/config.json"),
                                             .model_type = {},
                                             .family = nullptr,
                                             .quantization = {},
                                             .layers = {},
                                             .problems = {},
                                             .notices = files.notices});
  const Config& config = state->config;
  state->model_type = config.text("model_type", "");
  require(!state->model_type.empty(), config.where(),
          ": has no 'model_type'; the family of the model is unknown, add it");
  state->family = &find_family(state->model_type, config.where());
  state->quantization = read_quantization(files, model, state->notices);
  state->layers = list_layers(*state->family, config, *state->tensors, state->notices);
  for (LayerInfo& info : state->layers) {
    std::int64_t experts =
        config.integer(state->family->num_experts, 1, kMaxRoutedExperts).value_or(1);
    ExpertSpelling spelling =
        find_spelling(*state->family, BlockReader(*state->tensors, info.block), experts);
    Scheme scheme = routed_scheme(*state->family, state->quantization, info.block, spelling);
    info.format = std::string(scheme.format);
    state->problems.push_back(read_problem(*state->family, config, info.index, scheme));
  }
  if (state->layers.empty()) state->notices.push_back("config.json names no MoE layer");
  config.refuse_unread(state->model_type);
  Checkpoint out;
  out.state_ = std::move(state);
  return out;
}

std::size_t Checkpoint::position(std::int64_t index) const {
  const auto& layers = state_->layers;
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (layers[i].index == index) return i;
  std::string first = layers.empty() ? "none" : cat(layers.front().index),
              last = layers.empty() ? "" : cat(" .. ", layers.back().index);
  throw UsageError(cat(state_->path, ": layer ", index, " is no MoE layer; the MoE layers are ",
                       first, last, " (", layers.size(), " of them), ask `inspect` for the list"));
}

const std::vector<LayerInfo>& Checkpoint::layers() const { return state_->layers; }
const Problem& Checkpoint::problem(std::int64_t index) const {
  return state_->problems[position(index)];
}
const std::string& Checkpoint::family() const { return state_->model_type; }
const std::string& Checkpoint::path() const { return state_->path; }
const std::vector<std::string>& Checkpoint::notices() const { return state_->notices; }
std::int64_t Checkpoint::num_tensors() const {
  return std::int64_t(state_->tensors->tensors().size());
}
std::int64_t Checkpoint::file_bytes() const { return std::int64_t(state_->tensors->file_bytes()); }

std::string Checkpoint::schema() const {
  const Quantization& q = state_->quantization;
  return q.method() == "none" ? "none" : cat(q.method(), ": ", q.algorithm());
}

LayerReading Checkpoint::read_layer(std::int64_t index) const {
  std::size_t at = position(index);
  const LayerInfo& info = state_->layers[at];
  require(
      info.present || !info.is_mtp, state_->path, ": layer ", index,
      " is a declared MTP layer and the checkpoint holds no tensor of it; choose another layer");
  BlockReader reader(*state_->tensors, info.block);
  BlockContext context{*state_->family, state_->quantization, state_->problems[at], reader};
  LayerReading out;
  LayerWeights& w = out.weights;
  w.layer = index;
  w.block = info.block;
  w.problem = state_->problems[at];
  w.router = read_router(context, state_->config, w.notices);
  ExpertSpelling spelling = find_spelling(*state_->family, reader, w.problem.num_experts());
  Scheme scheme = routed_scheme(*state_->family, state_->quantization, info.block, spelling);
  out.experts = find_experts(context, spelling, scheme);
  w.activation_quant = scheme.activation;
  w.layout = out.experts.empty() ? scheme.layout : out.experts.front().up.layout;
  if (w.problem.shared_inter > 0) w.shared = read_shared(context, state_->tensors);
  if (std::int64_t n = count_f32(out.experts))
    w.notices.push_back(cat(n, " F32 expert weight(s) are rounded to bf16"));
  if (std::int64_t n = reader.fault_unknown())
    w.notices.push_back(
        cat(n, " input_scale tensor(s) are not used by the layer's format and are ignored"));
  out.findings = reader.findings();
  return out;
}

LayerWeights Checkpoint::layer(std::int64_t index) const {
  LayerReading reading = read_layer(index);
  throw_first(reading.findings, state_->path);
  auto experts = std::make_shared<const std::vector<ExpertSources>>(std::move(reading.experts));
  std::shared_ptr<const void> owner = state_->tensors;
  reading.weights.expert = [experts, owner](std::int64_t e) {
    require(e >= 0 && e < std::int64_t(experts->size()), "expert ", e,
            " does not exist; the layer has experts 0 .. ", experts->size() - 1);
    return (*experts)[std::size_t(e)].read(owner);
  };
  return std::move(reading.weights);
}

}  // namespace switchyard::checkpoint
