// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/loader.h"

#include "switchyard/base/check.h"
#include "switchyard/checkpoint/experts.h"
#include "switchyard/checkpoint/finite.h"
#include "switchyard/checkpoint/index.h"
#include "switchyard/checkpoint/json_text.h"
#include "switchyard/checkpoint/layer_list.h"
#include "switchyard/checkpoint/linear.h"
#include "switchyard/checkpoint/problem_reader.h"
#include "switchyard/checkpoint/router.h"
#include "switchyard/checkpoint/scale_notices.h"
#include "switchyard/checkpoint/stacked.h"

namespace switchyard::checkpoint {

using nlohmann::json;

namespace {

/// The config with the fields of its object `part` among its own; its own go first.
json merged(json object, std::string_view part) {
  auto nested = object.find(std::string(part));
  if (part.empty() || nested == object.end() || !nested->is_object()) return object;
  const json fields = *nested;
  for (const auto& [name, value] : fields.items())
    if (!object.contains(name)) object[name] = value;
  return object;
}

/// The model's object: text_config of a multimodal wrapper, with what stands outside it.
json model_object(const json& root) {
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    auto nested = root.find(key);
    if (nested == root.end() || !nested->is_object()) continue;
    json out = *nested;
    for (const char* outer :
         {"model_type", "quantization_config", "dtype", "torch_dtype", "expert_dtype"})
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
        "', a schema that is not served; served: quantization_config with fp8, mxfp4, modelopt or "
        "compressed-tensors");
  const json* block =
      model.contains("quantization_config") ? &model["quantization_config"] : nullptr;
  bool declared = (block && !block->is_null()) || files.hf_quant;
  require(declared || !files.legacy_quantize_config, files.directory,
          ": holds quantize_config.json (GPTQ or AWQ), a schema that is not served; served: fp8, "
          "mxfp4, modelopt, compressed-tensors");
  return Quantization::parse(block, files.hf_quant ? &*files.hf_quant : nullptr, files.directory,
                             notices);
}

/// expert_dtype stands outside the declaration and decides about the routed experts alone.
void read_expert_dtype(const Config& config, Quantization& quantization) {
  if (config.text("model_type", "") != "deepseek_v4") return;
  std::string type = config.word("expert_dtype", "bf16|bfloat16|fp8|fp4", "bf16");
  if (type == "fp4") quantization.set_routed("fp4", schemes::mxfp4());
}

std::optional<SharedExpert> read_shared(const BlockContext& c, const Config& config,
                                        std::int64_t layer,
                                        const std::shared_ptr<const void>& owner,
                                        std::vector<std::string>& notices) {
  auto sources = find_shared(c);
  SharedExpert out;
  if (c.problem.shared_gate)
    out.gate = read_float_tensor(c.reader, {c.family.shared_gate, {1, c.problem.hidden}}, notices);
  if (!sources || !check_values(c.reader, sources->weights)) return {};
  out.weights = sources->weights.read(owner);
  out.format = std::string(sources->scheme.format);
  out.activation_quant = sources->scheme.activation;
  out.activation =
      c.family.shared_activation ? c.family.shared_activation(config, layer) : c.problem.activation;
  return out;
}

std::optional<LatentProjection> read_latent(const BlockContext& c, const Config& config,
                                            const std::shared_ptr<const void>& owner,
                                            std::vector<std::string>& notices) {
  const LatentNames& names = c.family.latent;
  const std::int64_t hidden = c.problem.hidden, latent = c.problem.latent;
  auto find = [&](std::string_view base, std::int64_t rows, std::int64_t cols) {
    Scheme scheme = c.quantization.scheme_of(cat(c.reader.block(), ".", base));
    return find_linear(c.reader,
                       {.base = std::string(base), .rows = rows, .cols = cols, .scheme = &scheme});
  };
  auto down = find(names.down, latent, hidden), up = find(names.up, hidden, latent);
  LatentProjection out;
  if (!names.norm.empty() && config.flag(names.norm_flag, true)) {
    out.norm = read_float_tensor(c.reader, {names.norm, {latent}}, notices);
    double eps = config.number("rms_norm_eps", 1e-6);
    require(eps >= 0, config.where(), ": 'rms_norm_eps' is ", eps, ", must be >= 0");
    out.norm_eps = float(eps);
  }
  if (!down || !up || !check_values(c.reader, *down) || !check_values(c.reader, *up)) return {};
  out.down = down->read(owner);
  out.up = up->read(owner);
  return out;
}

/// Reads what a layer's tensors ask of the config beyond the problem, so that it fails at opening.
void check_layer_fields(const Family& family, const Config& config, std::int64_t layer) {
  if (family.shared_activation) family.shared_activation(config, layer);
  if (!family.latent.norm_flag.empty()) config.flag(family.latent.norm_flag, true);
  if (!family.parallel.inter.empty()) config.integer(family.parallel.inter, 0, kMaxWidth);
}

/// The MLP beside the block; nothing when the checkpoint does not hold it. It is no part of the
/// layer until it is asked for, so that its faults are a notice.
std::optional<SharedExpert> read_parallel(const BlockContext& c, const Config& config,
                                          const std::shared_ptr<const TensorTable>& tensors,
                                          std::vector<std::string>& notices) {
  const ParallelNames& names = c.family.parallel;
  if (names.up.empty()) return {};
  std::int64_t inter = config.integer(names.inter, 0, kMaxWidth).value_or(0);
  BlockReader reader(*tensors, c.reader.block().substr(0, c.reader.block().rfind('.')));
  // Codes are not "weight" in every schema, hence by the modules.
  std::string_view module = names.up.substr(0, names.up.rfind('.'));
  std::string_view down = names.down.substr(0, names.down.rfind('.'));
  if (inter == 0 || (!reader.any(cat(module, ".")) && !reader.any(cat(down, ".")))) return {};
  Scheme scheme = c.quantization.scheme_of(cat(reader.block(), ".", module));
  auto sources = find_parallel(c, reader, scheme, inter);
  if (!sources || !check_values(reader, *sources)) {
    notices.push_back(cat(kUnreadMlp, reader.findings().front().text));
    return {};
  }
  SharedExpert out;
  out.weights = sources->read(tensors);
  out.format = std::string(scheme.format);
  out.activation_quant = scheme.activation;
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
  const Family* family = nullptr;
  std::string model_type;
  Quantization quantization;
  std::vector<LayerInfo> layers;
  std::vector<Problem> problems;  // beside layers
  std::vector<std::string> notices;
};

Checkpoint Checkpoint::open(const std::string& path) {
  CheckpointFiles files = open_checkpoint_files(path);
  json model = model_object(files.config);
  const std::string where = path + "/config.json";
  std::string model_type = Config(model, where).text("model_type", "");
  require(!model_type.empty(), where,
          ": has no 'model_type'; the family of the model is unknown, add it");
  const Family& family = find_family(model_type, where);
  model = merged(std::move(model), family.config_part);
  auto state = std::make_shared<State>(State{.path = path,
                                             .tensors = files.tensors,
                                             .config = Config(model, where),
                                             .family = &family,
                                             .model_type = std::move(model_type),
                                             .quantization = {},
                                             .layers = {},
                                             .problems = {},
                                             .notices = files.notices});
  const Config& config = state->config;
  state->quantization = read_quantization(files, model, state->notices);
  read_expert_dtype(config, state->quantization);
  state->layers = list_layers(family, config, *state->tensors, state->notices);
  for (LayerInfo& info : state->layers) {
    BlockReader reader(*state->tensors, info.block);
    ExpertSpelling spelling =
        find_spelling(family, reader, read_num_experts(family, config, info.index));
    Scheme scheme = routed_scheme(family, state->quantization, info.block, spelling);
    info.format = std::string(scheme.format);
    Problem problem = read_problem(family, config, info.index, scheme);
    check_layer_fields(family, config, info.index);
    if (knows_input_norm(family, reader)) problem.routing.input_norm_eps = 0;
    state->problems.push_back(std::move(problem));
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
  const BlockContext context{*state_->family, state_->quantization, state_->problems[at], reader};
  const Config& config = state_->config;
  LayerReading out;
  LayerWeights& w = out.weights;
  w.layer = index;
  w.block = info.block;
  w.problem = state_->problems[at];
  w.router = read_router(context, config, w.notices);
  ExpertSpelling spelling = find_spelling(*state_->family, reader, w.problem.num_experts());
  Scheme scheme = routed_scheme(*state_->family, state_->quantization, info.block, spelling);
  out.experts = find_experts(context, spelling, scheme);
  w.activation_quant = scheme.activation;
  w.layout = out.experts.empty() ? scheme.layout : out.experts.front().up.layout;
  if (w.problem.shared_inter > 0)
    w.shared = read_shared(context, config, index, state_->tensors, w.notices);
  if (w.problem.latent > 0) w.latent = read_latent(context, config, state_->tensors, w.notices);
  w.parallel_mlp = read_parallel(context, config, state_->tensors, w.notices);
  note_scales(out.experts, w.notices);
  if (!state_->family->output_bias.empty())
    w.notices.push_back(cat(kOutputBias, "its routing and factor stay the checkpoint's"));
  if (std::int64_t n = count_f32(out.experts))
    w.notices.push_back(cat(n, " F32 expert weight(s) are rounded to bf16"));
  if (std::int64_t n = reader.fault_unknown(state_->family->owned))
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
  reading.weights.expert = [experts, owner, path = state_->path](std::int64_t e) {
    require(e >= 0 && e < std::int64_t(experts->size()), "expert ", e,
            " does not exist; the layer has experts 0 .. ", experts->size() - 1);
    const ExpertSources& sources = (*experts)[std::size_t(e)];
    throw_first(find_bad_values(sources, cat("expert ", e)), path);
    return sources.read(owner);
  };
  return std::move(reading.weights);
}

}  // namespace switchyard::checkpoint
