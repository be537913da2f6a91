// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "switchyard/api/call_memory.h"
#include "switchyard/api/judge.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"
#include "switchyard/base/random.h"
#include "switchyard/base/whole_file.h"
#include "switchyard/checkpoint/layer_list.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/moe_io.h"
#include "switchyard/checkpoint/scale_notices.h"
#include "switchyard/checkpoint/write_safetensors.h"
#include "switchyard/layer/expert_errors.h"
#include "switchyard/layer/judge.h"
#include "switchyard/layer/stages.h"

namespace switchyard {
namespace {

/// What a layer is verified on.
struct Trial {
  std::int64_t tokens = 0;
  std::vector<float> hidden, output;  // output may be empty
  std::vector<std::int64_t> token_ids;
};

constexpr std::int64_t kTokens = 24;

Trial trial_for(const VerifyOptions& o, const LayerEntry& entry, std::int64_t hidden) {
  if (o.io.empty()) {
    const std::int64_t tokens = o.tokens.value_or(kTokens);
    require(tokens >= 1, "tokens = ", tokens, ": a verdict needs at least one; ask for 1 or more");
    Trial t{.tokens = tokens,
            .hidden = random_tokens(tokens, hidden, o.build.seed),
            .output = {},
            .token_ids = {}};
    for (std::int64_t i = 0; i < tokens; ++i) t.token_ids.push_back(i);
    return t;
  }
  require(!o.tokens, "tokens = ", o.tokens.value_or(0), " and the file ", o.io,
          " are both given, and the file decides how many tokens there are; leave one out");
  const auto file = checkpoint::SafetensorsFile::open(o.io);
  checkpoint::MoeIo io = checkpoint::read_moe_io(file, entry.index, hidden);
  return {io.tokens,
          std::move(io.hidden_states),
          std::move(io.output),
          {io.token_ids.begin(), io.token_ids.end()}};
}

std::vector<double> widened(const std::vector<float>& v) { return {v.begin(), v.end()}; }

/// A layer under judgement, and what verify() gathers about it beside the verdict.
struct Subject {
  const MoeLayer& layer;
  const Trial& trial;
  const std::vector<std::int64_t>* token_ids;  // null unless routing reads them
};

std::vector<VerifiedExpert> judge_experts(const Subject& s) {
  const layer::Layer& impl = s.layer.impl();
  std::vector<layer::ExpertError> errors =
      layer::expert_errors(impl, s.trial.tokens, s.trial.hidden.data());
  layer::note_odd_experts(errors, layer::budgets_of(impl.routed().shape.quant).output,
                          impl.routed().scales.unseen);
  std::vector<VerifiedExpert> out;
  for (layer::ExpertError& e : errors)
    out.push_back({.id = e.id,
                   .rows = e.rows,
                   .rel_l2_oracle = e.rel_l2_oracle,
                   .rel_l2_unquantised = e.rel_l2_unquantised,
                   .fc1_input_scale = e.fc1_scale,
                   .fc2_input_scale = e.fc2_scale,
                   .note = std::move(e.note)});
  return out;
}

checkpoint::NamedTensor to_tensor(const layer::Stage& stage, std::int64_t layer) {
  checkpoint::NamedTensor t{
      .name = cat("layer", layer, ".", stage.name),
      .type = stage.ints.empty() ? checkpoint::TensorType::kF32 : checkpoint::TensorType::kI32,
      .shape = stage.shape,
      .bytes = {}};
  const auto bytes = stage.ints.empty() ? std::as_bytes(std::span(stage.floats))
                                        : std::as_bytes(std::span(stage.ints));
  t.bytes.assign(bytes.begin(), bytes.end());
  return t;
}

std::vector<layer::Stage> stages_of_row(const Subject& s, std::int64_t row) {
  const std::int64_t hidden = s.layer.problem().hidden;
  return layer::stages_of(s.layer.impl(),
                          {1,
                           s.trial.hidden.data() + row * hidden,
                           s.token_ids != nullptr ? s.token_ids->data() + row : nullptr,
                           {}});
}

void dump_stages(const Subject& s, std::int64_t row, std::vector<checkpoint::NamedTensor>& out) {
  require(row >= 0 && row < s.trial.tokens, "row ", row, " is outside 0..", s.trial.tokens - 1,
          ", the tokens that layer ", s.layer.impl().weights().layer, " is verified on");
  for (const layer::Stage& stage : stages_of_row(s, row))
    out.push_back(to_tensor(stage, s.layer.impl().weights().layer));
}

/// The limit to a given output. A shared expert may quantise its activations more coarsely than the
/// routed ones (DeepSeek V4); the wider limit then holds for the whole, and a notice says so.
double output_limit(const layer::Layer& layer, std::vector<std::string>& notices) {
  const formats::ActivationQuant routed = layer.routed().shape.quant;
  const double limit = layer::budgets_of(routed).output;
  if (layer.shared() == nullptr) return limit;
  const formats::ActivationQuant shared = layer.shared()->shape.quant;
  const double wider = layer::budgets_of(shared).output;
  if (wider <= limit) return limit;
  notices.push_back(cat("the output's limit ", wider, " is that of the shared expert's ",
                        to_string(shared), " activations; the routed experts' (", to_string(routed),
                        ") alone would have ", limit));
  return wider;
}

bool all_zero(const std::vector<double>& out) {
  return std::all_of(out.begin(), out.end(), [](double v) { return v == 0; });
}

/// Whether the oracle's stages of token `row`, which are of double, are beyond fp32: an activation
/// that clamps hides it from the output.
bool overflows_inside(const Subject& s, std::int64_t row) {
  for (const layer::Stage& stage : stages_of_row(s, row))
    if (stage.name.starts_with("oracle.") && !std::all_of(stage.floats.begin(), stage.floats.end(),
                                                          [](float v) { return std::isfinite(v); }))
      return true;
  return false;
}

std::string largest_scale(const Checkpoint& checkpoint, std::int64_t layer) {
  const std::string text =
      checkpoint::largest_scale_text(checkpoint.impl().read_layer(layer).experts);
  return text.empty() ? "" : cat("; ", text);
}

VerifiedLayer verify_layer(const Checkpoint& checkpoint, const LayerEntry& entry,
                           const VerifyOptions& o, std::vector<checkpoint::NamedTensor>& stages) {
  const std::int64_t hidden = checkpoint.impl().problem(entry.index).hidden;
  const Trial trial = trial_for(o, entry, hidden);
  BuildOptions build = o.build;
  if (!o.calibrate.empty()) build.calibration = read_calibration(o.calibrate, entry.index, hidden);
  const MoeLayer layer =
      LayerBuilder::build(checkpoint.impl().layer(entry.index), build, trial.hidden);
  const std::int64_t vocab = layer.impl().weights().router.vocab;
  std::vector<std::int64_t> ids = trial.token_ids;
  require(vocab == 0 || !ids.empty(), o.io, ": layer ", entry.index,
          " routes by token id, but the file "
          "holds no token_ids; add them");
  if (o.io.empty() && vocab > 0)
    for (std::int64_t& id : ids) id %= vocab;

  const layer::Judgement j = layer::judge(
      layer.impl(), {trial.tokens, trial.hidden.data(), vocab > 0 ? ids.data() : nullptr, {}});
  const layer::Budgets budgets = layer::budgets_of(layer.impl());
  VerifiedLayer v;
  v.layer = entry.index;
  v.block = layer.impl().weights().block;
  v.format = layer.problem().format;
  v.leaf = layer.leaf();
  v.tokens = trial.tokens;
  v.tactics = layer.tactics(trial.tokens);
  v.rel_l2_oracle = j.rel_l2_oracle;
  v.budget_rel_l2_oracle = budgets.oracle;
  v.ids_differing = j.ids_differing;
  v.ids_near_tie = j.ids_near_tie;
  v.codes = j.codes;
  v.codes_differing = j.codes_differing;
  v.worst_row = j.worst_row;
  v.worst_row_rel_l2 = j.worst_row_rel_l2;
  const Subject subject{layer, trial, vocab > 0 ? &ids : nullptr};
  if (o.per_expert) v.experts = judge_experts(subject);
  if (!o.dump_stages.empty()) dump_stages(subject, o.dump_row.value_or(j.worst_row), stages);
  v.notices = layer.notices();
  v.ok = j.ok(budgets);
  if (!v.ok && (j.overflows || overflows_inside(subject, j.worst_row)))
    v.notices.push_back(cat(overflow_text(), largest_scale(checkpoint, entry.index)));
  if (all_zero(j.out))
    v.notices.push_back(
        "the output of every token is 0: the tokens are, or weights or scales let nothing through");
  if (trial.output.empty()) return v;
  const std::vector<double> expected = widened(trial.output);
  v.rel_l2 = layer::rel_l2(j.out.data(), expected.data(), expected.size());
  if (LayerBuilder::requantised(layer)) return v;
  v.budget_rel_l2 = output_limit(layer.impl(), v.notices);
  v.ok = v.ok && *v.rel_l2 <= *v.budget_rel_l2;
  return v;
}

/// Stages must not take the place of what was given to be read.
void check_no_input(const std::string& target, const std::string& checkpoint,
                    const VerifyOptions& o) {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path folder = fs::absolute(target, none).parent_path();
  require(!fs::equivalent(folder, checkpoint, none), target,
          ": lies in the checkpoint's own folder, where stages would stand among its files; choose "
          "a path elsewhere");
  for (const std::string& input : {o.io, o.calibrate})
    require(input.empty() || !fs::equivalent(target, input, none), target,
            ": is a file that this call reads, and is not replaced by stages; choose another path");
}

constexpr std::string_view kStagesFormat = "switchyard.stages";

void check_stages(const std::string& path) {
  const auto metadata = checkpoint::SafetensorsFile::open(path).metadata();
  const auto format = metadata.find("format");
  require(format != metadata.end() && format->second == kStagesFormat, path,
          ": its __metadata__ has no 'format' \"", kStagesFormat, "\"");
}

}  // namespace

std::vector<LayerEntry> chosen_layers(const Checkpoint& checkpoint,
                                      std::optional<std::int64_t> layer) {
  std::vector<LayerEntry> chosen;
  std::vector<std::string> known, present;
  for (const LayerEntry& e : checkpoint.layers()) {
    known.push_back(cat(e.index, e.present ? "" : " (absent)"));
    if (e.present) present.push_back(cat(e.index));
    if (layer ? e.index == *layer : e.present && !e.is_mtp) chosen.push_back(e);
  }
  const auto list = [](const auto& names) { return names.empty() ? "none" : join(names, ", "); };
  require(!layer || !chosen.empty(), "layer ", layer.value_or(0),
          " is no MoE layer of this checkpoint; it has ", list(known));
  require(!layer || chosen[0].present, "layer ", layer.value_or(0), " is declared",
          layer && chosen[0].is_mtp ? " (multi-token prediction)" : "",
          " but the checkpoint holds none of its tensors; those it holds: ", list(present));
  require(!chosen.empty(),
          "the checkpoint holds no MoE layer beside multi-token prediction; declared: ",
          list(known), "; `switchyard inspect` lists what it holds");
  return chosen;
}

std::string overflow_text() {
  return "the checkpoint's own values overflow: the reference, too, leaves the range of fp32 or of "
         "the output";
}

std::vector<float> random_tokens(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed) {
  // In fp32, and as the layer reads and writes them.
  constexpr double kLeastBytes = 4 + 2 + 2;
  api::CallMemory{kLeastBytes * double(tokens) * double(hidden), tokens, hidden}.check();
  const Random random(seed, 5);
  std::vector<float> x(std::size_t(tokens * hidden));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(float_to_bf16(random.normal(i)));
  return x;
}

VerifyResult verify(const std::string& path, const VerifyOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  VerifyResult result{.ok = true, .layers = {}, .notices = checkpoint.impl().notices()};
  require(!options.dump_row || !options.dump_stages.empty(), "row ", options.dump_row.value_or(0),
          " is given without a file for its stages; name one or leave the row out");
  std::optional<WholeFile> dump;  // a path that cannot be written is refused before the work
  if (!options.dump_stages.empty()) {
    check_no_input(options.dump_stages, path, options);
    dump.emplace(options.dump_stages, FileKind{"dump of stages", check_stages});
  }
  const std::vector<LayerEntry> chosen = chosen_layers(checkpoint, options.layer);
  // A part of a checkpoint is not passed as the whole one.
  const std::string absent = checkpoint::absent_text(checkpoint.impl().layers());
  require(options.layer || absent.empty(), path, ": ", absent,
          "; fetch the files that are missing, or ask for one layer that is there");
  std::vector<checkpoint::NamedTensor> stages;
  for (const LayerEntry& entry : chosen) {
    result.layers.push_back(verify_layer(checkpoint, entry, options, stages));
    result.ok = result.ok && result.layers.back().ok;
  }
  if (dump) {
    checkpoint::write_safetensors(dump->out(), stages, kStagesFormat);
    dump->commit();
  }
  return result;
}

}  // namespace switchyard
