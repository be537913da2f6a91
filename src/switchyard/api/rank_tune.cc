// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/rank_tune.h"

#include <algorithm>
#include <deque>
#include <string>

#include "switchyard/api/call_inputs.h"
#include "switchyard/api/rank_builder.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/gathered.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/resolve/json.h"
#include "switchyard/tune/timer.h"
#include "switchyard/tune/tuner.h"

namespace switchyard {
namespace {

constexpr const char* kPhase = "tuning on the ranks";

double largest(comm::Group& group, double mine) {
  const std::vector<double> all = comm::gathered(group, mine, kPhase);
  return *std::max_element(all.begin(), all.end());
}

/// This rank's candidates of a call that every rank has; its own plan first.
std::vector<Tactic> common_candidates(comm::Group& group, const std::vector<Tactic>& mine) {
  std::string text;
  for (const Tactic& t : mine) text += to_string(t) + "\n";
  const std::vector<std::string> all = group.all_gather(text, kPhase);
  std::vector<Tactic> out = {mine.front()};
  std::string_view rest = all.front();  // in rank 0's order everywhere
  const std::string_view plan = rest.substr(0, rest.find('\n') + 1);
  if (std::all_of(all.begin(), all.end(),
                  [&](const std::string& l) { return l.starts_with(plan); }))
    rest.remove_prefix(plan.size());  // it is every rank's plan
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n') + 1);
    rest.remove_prefix(line.size());
    const bool everywhere = std::all_of(all.begin(), all.end(), [&](const std::string& list) {
      return ("\n" + list).find(cat("\n", line)) != std::string::npos;
    });
    if (everywhere) out.push_back(to_tactic(line.substr(0, line.size() - 1)));
  }
  return out;
}

/// The forwards of one rank, in step with the others'.
class RankRace {
 public:
  RankRace(layer::RankLayer& layer, const Traffic& traffic)
      : layer_(layer),
        group_(layer.group()),
        inputs_(layer.part().problem(), layer.part().weights().router.vocab, traffic),
        workspace_(layer.workspace_bytes()) {
    tune::Tape tape;
    run(&tape);
    calls_ = tape.calls();
  }

  const std::vector<tune::TunableCall>& calls() const { return calls_; }
  /// The first call of that name; null where this layer has none.
  const tune::TunableCall* find(std::string_view name) const {
    for (const tune::TunableCall& call : calls_)
      if (call.name == name) return &call;
    return nullptr;
  }
  /// Enters `tactic` for the calls of that name, the plans for the others.
  void enter(std::string_view name, const Tactic& tactic) {
    std::vector<Tactic> all;
    for (const tune::TunableCall& call : calls_)
      all.push_back(call.name == name ? tactic : call.candidates.front());
    tapes_.emplace_back(calls_, std::move(all));
  }
  /// Times what was entered; the same numbers on every rank.
  tune::Timed timed() {
    return {[this](std::int64_t c) { return largest(group_, run(&tapes_[std::size_t(c)])); },
            [this] { return largest(group_, tune::now_us()); }};
  }

 private:
  double run(tune::Tape* tape) {
    inputs_.fill(runs_++);
    ForwardArgs f = inputs_.args(workspace_.bytes());
    f.tape = tape;
    group_.barrier(kPhase);
    const double start = tune::now_us();
    layer_.forward(f);
    return tune::now_us() - start;
  }

  layer::RankLayer& layer_;
  comm::Group& group_;
  CallInputs inputs_;
  HostBuffer workspace_;
  std::vector<tune::TunableCall> calls_;
  std::deque<tune::Tape> tapes_;
  std::int64_t runs_ = 0;
};

/// The entries of all ranks.
void gather_entries(comm::Group& group, const tune::TuningTable& mine, tune::TuningTable& table) {
  for (const std::string& text : group.all_gather(tune::table_text(mine), kPhase))
    for (tune::TableEntry& e : tune::parse_table(text, "a rank's entries").entries)
      table.put(std::move(e));
}

}  // namespace

std::vector<TunedCall> tune_rank(comm::Group& group, const PreparedLayer& p, const TuneOptions& o,
                                 std::int64_t bucket, tune::TuningTable& table) {
  if (p.options.leaf->device != Device::kCpu)
    throw CannotServe(
        "path_not_enabled: tune: ranks on GPUs are not timed together in this version; tune one "
        "rank on a GPU, or ranks on device cpu",
        resolve::to_json(p.state->report), Reject::kPathNotEnabled);
  RunOptions run = o.source;
  run.tokens = bucket;
  layer::RankLayer layer(group, p.weights, rank_options(group, p, run));
  std::vector<std::string> notices;
  calibrate_rank(layer, run.build, notices);
  std::vector<TunedCall> out;
  for (std::string_view name : {layer::kExpertsCall, layer::kSharedCall}) {
    const std::uint64_t own = layer.own_tokens() ? std::uint64_t(group.rank()) : 0;
    RankRace race(layer, {bucket, run.routing, run.seed + own});
    const tune::TunableCall* call = race.find(name);
    if (!group.vote(call != nullptr, kPhase)) continue;  // a rank without rows is not asked
    const std::vector<Tactic> candidates = common_candidates(group, call->candidates);
    for (const Tactic& t : candidates) race.enter(name, t);
    const tune::TunerResult r =
        tune::search(race.timed(), std::int64_t(candidates.size()), {.seconds = o.seconds});
    TunedCall t;
    t.layer = p.weights.layer;
    t.tokens = bucket;
    t.format = p.weights.problem.format;
    t.leaf = call->key.leaf;
    t.call = std::string(name);
    t.plan = candidates.front(), t.tactic = candidates[std::size_t(r.best)];
    t.us = t.plan_us = r.duel.plan_us, t.noise = r.duel.noise;
    if (r.best != 0) t.us = r.duel.us, t.ratio = r.duel.ratio;
    t.candidates = std::int64_t(candidates.size()), t.rounds = r.rounds;
    t.ways = with_times(candidates, r.medians);
    t.why = cat(r.best != 0 ? "faster than the plan's" : "nothing beat the plan's", " on ",
                group.size(), " ranks");
    tune::TuningTable mine;
    for (const tune::TunableCall& c : race.calls())
      if (c.name == name)
        mine.put({c.key, r.best != 0 ? t.tactic : c.candidates.front(), c.candidates.front(), t.us,
                  t.plan_us, t.noise, t.candidates, t.rounds});
    gather_entries(group, mine, table);
    out.push_back(std::move(t));
  }
  return out;
}

}  // namespace switchyard
