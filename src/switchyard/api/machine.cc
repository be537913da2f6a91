// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/machine.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "switchyard/api/checkpoint.h"
#include "switchyard/api/served.h"
#include "switchyard/base/nearest.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/resolve/json.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/resolve/resolver.h"
#include "switchyard/resolve/warnings.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

/// One report, and which layer of a checkpoint it is about.
struct Answer {
  std::optional<LayerEntry> layer;
  resolve::Report report;
  std::string shared_leaf{};  // empty without a shared expert
  bool mega = false;          // the strategy is a leaf of its own, which runs in the winner's place

  bool served() const { return !report.winner.empty(); }
};

/// A field that a preset or a checkpoint fixes, when the sketch states it too.
std::string stated_shape(const ProblemSketch& s) {
  const std::pair<bool, const char*> fields[] = {
      {s.hidden.has_value(), "hidden"},
      {s.latent.has_value(), "latent"},
      {s.inter.has_value(), "inter"},
      {s.expert_bias.has_value(), "expert_bias"},
      {s.activation.has_value(), "activation"},
      {s.routing.has_value(), "routing"},
      {s.num_experts.has_value(), "num_experts"},
      {s.top_k.has_value(), "top_k"},
      {s.routed_scaling_factor.has_value(), "routed_scaling_factor"},
      {s.num_shared.has_value(), "num_shared"},
      {s.shared_inter.has_value(), "shared_inter"},
      {s.shared_gate.has_value(), "shared_gate"}};
  for (const auto& [stated, name] : fields)
    if (stated) return name;
  return "";
}

/// Names the leaf that runs: the fused strategy's is no row of the list, it takes the winner's
/// place.
void name_mega(Answer& answer) {
  if (!answer.mega || !answer.served()) return;
  Identity4 id = leaves::find_leaf_by_id(answer.report.winner)->id;
  id.kernel = "mega_moe";
  answer.report.winner = answer.report.eligible.front() = id.str();
}

class Explainer {
 public:
  explicit Explainer(const ExplainOptions& options) : options_(options) {
    deployment_ = options.deployment;
    deployment_.env = resolve::environment();
    if (options.sm)
      deployment_.env = resolve::with_gpu(deployment_.env, *options.sm, int(deployment_.ranks()));
    request_.leaf = options.leaf;
    request_.prefer = options.prefer;
    request_.comm = options.comm;
    if (options.device_pinned) request_.device = options.deployment.device;
    check_sources();
    if (options.sketch.format) leaves::to_format(*options.sketch.format);
  }

  std::vector<Answer> run() {
    std::vector<Answer> out = answers();
    for (Answer& answer : out) name_mega(answer);
    return out;
  }

  /// What the checkpoint's files gave occasion to, after run().
  const std::vector<std::string>& notices() const { return notices_; }

 private:
  std::vector<Answer> answers() {
    if (!options_.checkpoint.empty()) return from_checkpoint();
    if (!options_.preset.empty()) return {answer(overlaid(make_preset(options_.preset)))};
    return {from_sketch()};
  }

  void check_sources() const {
    require(options_.preset.empty() || options_.checkpoint.empty(), "preset '", options_.preset,
            "' and checkpoint '", options_.checkpoint, "' are both stated; keep one");
    require(!options_.layer || !options_.checkpoint.empty(), "layer ", options_.layer.value_or(0),
            " is stated without a checkpoint to take it from; name one or drop the layer");
    if (options_.preset.empty() && options_.checkpoint.empty()) return;
    std::string field = stated_shape(options_.sketch);
    require(field.empty(), field, " is stated beside ",
            options_.preset.empty() ? "a checkpoint" : "a preset",
            ", which fixes it; keep one of the two");
  }

  Problem overlaid(Problem p) const {
    const ProblemSketch& s = options_.sketch;
    if (s.format) p.format = fold_format(*s.format);
    p.dtype = s.dtype.value_or(p.dtype);
    p.activations = s.activations.value_or(p.activations);
    p.combine = s.combine.value_or(p.combine);
    return p;
  }

  Answer answer(const Problem& problem) const {
    api::Served served = api::ask_served(problem, deployment_, request_, options_.comm);
    Answer out{{}, std::move(served.report)};
    for (std::string& line :
         api::overruled(deployment_.env, options_.comm, options_.sketch.combine))
      out.report.warnings.push_back(std::move(line));
    out.mega = served.join.strategy == &comm::fused();
    if (!served.built.eligible())
      api::withdraw_winner(out.report, served.built.reason(), served.built.detail());
    return out;
  }

  /// The shared expert is served by the leaf of its own format, where the routed ones run.
  void ask_shared(Answer& out, std::string_view format) const {
    if (!out.served()) return;
    Deployment placed = deployment_;
    placed.device = leaves::find_leaf_by_id(out.report.winner)->device;
    const leaves::Found found = api::ask_shared_leaf(out.report.problem, format, placed);
    if (found.leaf != nullptr) out.shared_leaf = found.leaf->id.str();
    if (!found.verdict.eligible())
      api::withdraw_winner(out.report, found.verdict.reason(),
                           cat("the shared expert's format ", show_format(format),
                               " cannot be served: ", found.verdict.detail()));
  }

  /// The projections around latent experts are served as they are stored, or not at all.
  static void ask_latent(Answer& out, const checkpoint::LatentProjection& latent) {
    const Eligibility verdict = api::ask_latent(latent);
    if (out.served() && !verdict.eligible())
      api::withdraw_winner(out.report, verdict.reason(), verdict.detail());
  }

  // A pinned leaf that names a format says what the sketch leaves open; assuming another one would
  // make the assumption itself the reason to refuse.
  Answer from_sketch() const {
    CompletedProblem completed = complete(options_.sketch, deployment_);
    if (!options_.sketch.format && !options_.leaf.empty()) {
      std::string format = leaves::parse_leaf_query(options_.leaf).fields[3];
      if (!format.empty()) completed.problem.format = format;
      for (Assumption& assumption : completed.assumed)
        if (assumption.field == "format") assumption.value = completed.problem.format;
    }
    Answer out = answer(completed.problem);
    out.report.assumed = std::move(completed.assumed);
    return out;
  }

  std::vector<Answer> from_checkpoint() {
    Checkpoint checkpoint = Checkpoint::open(options_.checkpoint);
    notices_ = checkpoint.impl().notices();
    std::vector<Answer> out;
    for (const LayerEntry& entry : checkpoint.layers()) {
      if (options_.layer ? entry.index != *options_.layer : !entry.present) continue;
      require(entry.present, "layer ", entry.index, " (", entry.block,
              ") is declared and the checkpoint holds no tensor of it; choose another");
      out.push_back(answer(overlaid(checkpoint.impl().problem(entry.index))));
      out.back().layer = entry;
      const Problem& own = checkpoint.impl().problem(entry.index);
      if (own.shared_inter == 0 && own.latent == 0) continue;
      const checkpoint::LayerReading read = checkpoint.impl().read_layer(entry.index);
      if (read.weights.latent) ask_latent(out.back(), *read.weights.latent);
      if (read.weights.shared) ask_shared(out.back(), read.weights.shared->format);
    }
    if (out.empty() && options_.layer) checkpoint.impl().problem(*options_.layer);  // throws
    require(!out.empty(), "checkpoint '", options_.checkpoint, "' has no MoE layer to explain");
    return out;
  }

  const ExplainOptions& options_;
  Deployment deployment_;
  resolve::Request request_;
  std::vector<std::string> notices_;
};

Json to_json(const Answer& answer) {
  Json out = Json::parse(resolve::to_json(answer.report));
  out["ok"] = answer.served();
  if (!answer.shared_leaf.empty()) out["shared_leaf"] = answer.shared_leaf;
  if (answer.layer) {
    out["layer"] = answer.layer->index;
    out["block"] = answer.layer->block;
  }
  return out;
}

std::string to_text(const Answer& answer) {
  std::string text = resolve::to_text(answer.report);
  if (!answer.layer) return text;
  if (!answer.shared_leaf.empty()) text += cat("shared expert: ", answer.shared_leaf, "\n");
  return cat("layer ", answer.layer->index, "  ", answer.layer->block, "\n", text);
}

}  // namespace

Environment environment() { return resolve::environment(); }

CpuIsa running_tier(const Environment& env) { return ops::panel_twin(env.isa).tier; }

void set_warning_sink(std::function<void(std::string_view)> sink) {
  resolve::set_warning_sink(std::move(sink));
}

Explanation explain(const ExplainOptions& options) {
  Explainer explainer(options);
  std::vector<Answer> answers = explainer.run();
  Explanation out;
  out.served = std::all_of(answers.begin(), answers.end(), std::mem_fn(&Answer::served));
  Json layers = Json::array();
  for (const Answer& answer : answers) {
    layers.push_back(to_json(answer));
    out.text += (out.text.empty() ? "" : "\n") + to_text(answer);
  }
  for (const std::string& notice : explainer.notices()) out.text += notice + "\n";
  bool every_layer = !options.checkpoint.empty() && !options.layer;
  Json json = every_layer ? Json{{"ok", out.served},
                                 {"layers", std::move(layers)},
                                 {"notices", explainer.notices()}}
                          : layers[0];
  out.json = json.dump();
  return out;
}

}  // namespace switchyard
