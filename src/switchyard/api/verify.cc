// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "switchyard/api/judge.h"
#include "switchyard/api/judge_support.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/base/random.h"
#include "switchyard/checkpoint/loader.h"
#include "switchyard/checkpoint/moe_io.h"
#include "switchyard/layer/judge.h"

namespace switchyard {
namespace {

/// What a layer is verified on.
struct Trial {
  std::int64_t tokens = 0;
  std::vector<float> hidden, output;  // output may be empty
  std::vector<std::int64_t> token_ids;
};

Trial trial_for(const VerifyOptions& o, const LayerEntry& entry, std::int64_t hidden) {
  if (o.io.empty()) {
    require(o.tokens >= 1, "tokens = ", o.tokens,
            ": a verdict needs at least one; ask for 1 or more");
    Trial t{.tokens = o.tokens,
            .hidden = random_tokens(o.tokens, hidden, o.build.seed),
            .output = {},
            .token_ids = {}};
    for (std::int64_t i = 0; i < o.tokens; ++i) t.token_ids.push_back(i);
    return t;
  }
  const auto file = checkpoint::SafetensorsFile::open(o.io);
  checkpoint::MoeIo io = checkpoint::read_moe_io(file, entry.index, hidden);
  return {io.tokens,
          std::move(io.hidden_states),
          std::move(io.output),
          {io.token_ids.begin(), io.token_ids.end()}};
}

std::vector<double> widened(const std::vector<float>& v) { return {v.begin(), v.end()}; }

VerifiedLayer verify_layer(const Checkpoint& checkpoint, const LayerEntry& entry,
                           const VerifyOptions& o) {
  const std::int64_t hidden = checkpoint.impl().problem(entry.index).hidden;
  const Trial trial = trial_for(o, entry, hidden);
  BuildOptions build = o.build;
  if (!o.calibrate.empty()) build.calibration = read_calibration(o.calibrate, entry.index, hidden);
  if (build.calibration.empty()) build.calibration = trial.hidden;
  const MoeLayer layer = MoeLayer::from_checkpoint(checkpoint, entry.index, build);
  const std::int64_t vocab = layer.impl().weights().router.vocab;
  std::vector<std::int64_t> ids = trial.token_ids;
  require(vocab == 0 || !ids.empty(), o.io, ": layer ", entry.index,
          " routes by token id, but the file "
          "holds no token_ids; add them");
  if (o.io.empty() && vocab > 0)
    for (std::int64_t& id : ids) id %= vocab;

  const layer::Judgement j = layer::judge(
      layer.impl(), {trial.tokens, trial.hidden.data(), vocab > 0 ? ids.data() : nullptr, {}});
  const layer::Budgets budgets = layer::budgets_of(layer.impl().routed().shape.quant);
  VerifiedLayer v;
  v.layer = entry.index;
  v.block = layer.impl().weights().block;
  v.format = layer.problem().format;
  v.leaf = layer.leaf();
  v.tokens = trial.tokens;
  v.rel_l2_oracle = j.rel_l2_oracle;
  v.budget_rel_l2_oracle = budgets.oracle;
  v.ids_differing = j.ids_differing;
  v.ids_near_tie = j.ids_near_tie;
  v.codes = j.codes;
  v.codes_differing = j.codes_differing;
  v.notices = layer.notices();
  v.ok = j.ok(budgets);
  if (trial.output.empty()) return v;
  const std::vector<double> expected = widened(trial.output);
  v.rel_l2 = layer::rel_l2(j.out.data(), expected.data(), expected.size());
  if (LayerBuilder::requantised(layer)) return v;
  v.budget_rel_l2 = budgets.output;
  v.ok = v.ok && *v.rel_l2 <= budgets.output;
  return v;
}

}  // namespace

std::vector<LayerEntry> chosen_layers(const Checkpoint& checkpoint,
                                      std::optional<std::int64_t> layer) {
  std::vector<LayerEntry> chosen;
  std::string known;
  for (const LayerEntry& e : checkpoint.layers()) {
    known += cat(known.empty() ? "" : ", ", e.index, e.present ? "" : " (absent)");
    if (layer ? e.index == *layer : e.present && !e.is_mtp) chosen.push_back(e);
  }
  require(!layer || !chosen.empty(), "layer ", layer.value_or(0),
          " is no MoE layer of this checkpoint; "
          "it has ",
          known.empty() ? "none" : known);
  require(!layer || chosen[0].present, "layer ", layer.value_or(0),
          " is declared (multi-token "
          "prediction) but the checkpoint holds none of its tensors; choose one of ",
          known);
  require(!chosen.empty(),
          "the checkpoint holds no MoE layer; `switchyard inspect` lists what it holds");
  return chosen;
}

std::vector<float> random_tokens(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed) {
  const Random random(seed, 5);
  std::vector<float> x(std::size_t(tokens * hidden));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(float_to_bf16(random.normal(i)));
  return x;
}

VerifyResult verify(const std::string& path, const VerifyOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  VerifyResult result{.ok = true, .layers = {}, .notices = checkpoint.impl().notices()};
  for (const LayerEntry& entry : chosen_layers(checkpoint, options.layer)) {
    result.layers.push_back(verify_layer(checkpoint, entry, options));
    result.ok = result.ok && result.layers.back().ok;
  }
  return result;
}

}  // namespace switchyard
