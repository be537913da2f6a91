// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/tune.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>

#include "switchyard/api/bench_session.h"
#include "switchyard/api/layer_builder.h"
#include "switchyard/api/layer_call.h"
#include "switchyard/api/layer_source.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/rank_tune.h"
#include "switchyard/api/tuning.h"
#include "switchyard/base/check.h"
#include "switchyard/layer/device_rank.h"
#include "switchyard/layer/run_experts.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/probe_cuda.h"
#include "switchyard/tune/timer.h"
#include "switchyard/tune/tuner.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMostTokens = 1 << 20;
constexpr double kLowShare = 0.25;  // of a call's seconds, for the bucket's fewest tokens

/// Layers enough that calls in turn find their weights in no cache.
std::vector<MoeLayer> equal_layers(MoeLayer layer, const Environment& env) {
  const std::int64_t bytes = layer.packed_bytes();
  const std::int64_t count = layer::on_cuda(layer.impl())
                                 ? fresh_device_layers(resolve::probe_gpus(), bytes)
                                 : fresh_layers(env, bytes);
  return LayerBuilder::copies(std::move(layer), count);
}

/// A forward of some tokens under given tactics, each time with routing of its own and on the next
/// layer.
class Race {
 public:
  Race(const std::vector<MoeLayer>& layers, const Traffic& traffic)
      : call_(layers, traffic),
        cuda_(layer::on_cuda(layers.front().impl())),
        calls_(layer::tunable_calls(layers.front().impl(), traffic.tokens)) {
    call_.prepare(0);
    call_.forward();  // the first call touches fresh pages
  }

  const std::vector<tune::TunableCall>& calls() const { return calls_; }
  /// The plan of every call.
  std::vector<Tactic> plans() const { return tune::combination(calls_, 0); }
  /// Enters a candidate. Returns its number.
  std::int64_t enter(const std::vector<Tactic>& tactics) {
    tapes_.emplace_back(calls_, tactics);
    return std::int64_t(tapes_.size()) - 1;
  }
  /// Times the candidates from number `first` on.
  tune::Timed from(std::int64_t first) {
    return {[this, first](std::int64_t c) { return time(tapes_[std::size_t(first + c)]); },
            [] { return tune::now_us(); }};
  }

 private:
  double time(tune::Tape& tape) {
    constexpr std::int64_t kDeviceRuns = 8;  // of a draw, which has routing for a graph of calls
    ++runs_;
    if (!cuda_) call_.use(runs_);
    if (!cuda_ || runs_ % kDeviceRuns == 0) call_.prepare(runs_);
    return call_.forward(tape);
  }

  LayerCall call_;
  bool cuda_;
  std::vector<tune::TunableCall> calls_;
  std::deque<tune::Tape> tapes_;  // a graph on cuda knows its tape by the address
  std::int64_t runs_ = 0;
};

/// Tunes the calls of one layer, bucket by bucket.
class LayerTuner {
 public:
  LayerTuner(const std::vector<MoeLayer>& layers, const TuneOptions& o, tune::TuningTable& table)
      : layers_(layers), layer_(layers.front()), o_(o), table_(table) {}

  void tune(std::int64_t bucket, std::vector<TunedCall>& out) {
    const std::vector<tune::TunableCall> calls = layer::tunable_calls(layer_.impl(), bucket);
    std::optional<Race> race;
    std::vector<Tactic> tactics = tune::combination(calls, 0);
    for (std::size_t i = calls.size(); i-- > 0;) {  // the routed experts weigh most
      TunedCall t = described(calls[i], bucket);
      const tune::TableEntry* known = table_.find(calls[i].key);
      if (known != nullptr && !o_.again) {
        check_known(calls[i], *known);
        take_known(*known, t);
      } else {
        if (!race) race.emplace(layers_, Traffic{bucket, o_.source.routing, o_.source.seed});
        choose(*race, i, tactics, t);
        table_.put(
            {calls[i].key, t.tactic, t.plan, t.us, t.plan_us, t.noise, t.candidates, t.rounds});
      }
      tactics[i] = t.tactic;
      out.push_back(std::move(t));
    }
  }

 private:
  TunedCall described(const tune::TunableCall& call, std::int64_t bucket) const {
    TunedCall t;
    t.layer = layer_.impl().weights().layer;
    t.tokens = bucket;
    t.format = layer_.problem().format;
    t.leaf = call.key.leaf;
    t.call = call.name;
    t.plan = t.tactic = call.candidates.front();
    t.candidates = std::int64_t(call.candidates.size());
    return t;
  }

  /// Errors: UsageError that names the table, for a tactic that its call cannot run.
  void check_known(const tune::TunableCall& call, const tune::TableEntry& e) const {
    const layer::Layer& l = layer_.impl();
    const bool shared = call.name == layer::kSharedCall;
    const leaves::Leaf& leaf = shared ? *l.options().shared_leaf : *l.options().leaf;
    const ops::FfnShape& shape = shared ? l.shared()->shape : l.routed().shape;
    tune::TuningTable one;
    one.entries = {e};
    tune::TacticBook book;
    book.add(one, TacticOrigin::kFile, o_.out);
    book.list_for(leaf, {&shape, e.key.tokens, layer_.threads(), l.options().isa});
  }

  static void take_known(const tune::TableEntry& e, TunedCall& t) {
    t.known = true;
    t.why = "the table has it";
    t.tactic = e.tactic, t.plan = e.plan;
    t.us = e.us, t.plan_us = e.plan_us, t.noise = e.noise;
    t.ratio = e.us / e.plan_us;
    t.candidates = e.candidates, t.rounds = e.rounds;
  }

  void choose(Race& race, std::size_t i, const std::vector<Tactic>& tactics, TunedCall& t) {
    const std::vector<Tactic>& candidates = race.calls()[i].candidates;
    std::int64_t first = 0;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      std::vector<Tactic> all = tactics;
      all[i] = candidates[c];
      const std::int64_t number = race.enter(all);
      if (c == 0) first = number;
    }
    const tune::TunerResult r =
        tune::search(race.from(first), std::int64_t(candidates.size()), {.seconds = o_.seconds});
    t.us = t.plan_us = r.duel.plan_us;
    t.noise = r.duel.noise, t.rounds = r.rounds;
    t.ways = with_times(candidates, r.medians);
    t.why = candidates.size() == 1 ? "there is one way only" : "nothing beat the plan's";
    if (r.best == 0) return;
    if (slower_at_low_end(i, tactics, candidates[std::size_t(r.best)], t)) return;
    t.tactic = candidates[std::size_t(r.best)];
    t.us = r.duel.us, t.ratio = r.duel.ratio;
    t.why = "faster than the plan's";
  }

  /// A bucket's choice serves all its token counts; the plan may be another one at the fewest.
  bool slower_at_low_end(std::size_t i, const std::vector<Tactic>& tactics, const Tactic& winner,
                         TunedCall& t) const {
    const std::int64_t fewest = t.tokens / 2 + 1;
    if (fewest >= t.tokens) return false;
    Race race(layers_, {fewest, o_.source.routing, o_.source.seed});
    const std::vector<Tactic> plans =
        tune::combination(layer::tunable_calls(layer_.impl(), t.tokens), 0);
    const tune::DuelSides sides = tune::duel_sides(plans, tactics, race.plans(), i, winner);
    race.enter(sides.plan);
    race.enter(sides.chosen);
    const tune::Duel duel = tune::duel(race.from(0), 1, kLowShare * o_.seconds, {});
    if (!duel.slower()) return false;
    t.why = cat("the fastest, ", to_string(winner), ", is slower at ", fewest, " tokens");
    return true;
  }

  const std::vector<MoeLayer>& layers_;
  const MoeLayer& layer_;
  const TuneOptions& o_;
  tune::TuningTable& table_;
};

std::int64_t ranks_of(const TuneOptions& o) { return o.source.build.ep * o.source.build.tp; }

void check_options(const TuneOptions& o) {
  require(!o.tokens.empty(), "tune: no tokens are given; name at least one number");
  for (std::int64_t tokens : o.tokens)
    require(tokens >= 1 && tokens <= kMostTokens, "tune: tokens = ", tokens,
            "; a call has at least 1, and ", kMostTokens, " at most");
  require(o.seconds > 0 && o.seconds <= 3600, "tune: seconds = ", o.seconds,
          "; it must be above 0, at most 3600");
  require(!o.again || !o.out.empty(),
          "tune: again is set without a table to write (out), and so there is nothing to tune a "
          "second time; name the table, or leave again out");
  require(o.source.build.tuning.empty(), "tune: a table to run with (", o.source.build.tuning,
          ") is given; tuning compares with the plans, leave it out");
  for (const std::string& format : o.formats) leaves::to_format(format);
  const Parallel mode = o.source.build.parallel.value_or(Deployment{}.parallel);
  if (ranks_of(o) > 1 && mode == Parallel::kDep)
    throw CannotServe(
        "path_not_enabled: tune under dep: the rows that a rank's experts get change with every "
        "routing, so no bucket stands for them; tune one rank, or tep, ttp or dtp",
        "{}");
}

/// Whether something stands at `path`: more than the empty file that mktemp leaves.
bool is_written(const std::string& path) {
  std::error_code none;
  if (path.empty() || !std::filesystem::exists(path, none)) return false;
  return !std::filesystem::is_regular_file(path, none) ||
         std::filesystem::file_size(path, none) > 0;
}

/// The table at `path`, or an empty one. Errors say what helps somebody who is tuning already.
tune::TuningTable table_at(const std::string& path, const Environment& env) {
  tune::TuningTable here = table_here(env);
  if (!is_written(path)) return here;
  const std::string remedy = cat("delete ", path, " or name another file for the table");
  tune::TuningTable old;
  try {
    old = tune::read_table(path);
  } catch (const UsageError& e) {
    throw UsageError(cat("the table to write (out): ", e.what(), "; or ", remedy));
  }
  tune::require_made_for(old, here, path, remedy);
  return old;
}

std::vector<std::int64_t> buckets_of(const std::vector<std::int64_t>& tokens) {
  std::vector<std::int64_t> out;
  for (std::int64_t t : tokens)
    if (std::find(out.begin(), out.end(), token_bucket(t)) == out.end())
      out.push_back(token_bucket(t));
  return out;
}

/// Where a tuning stands.
struct Session {
  const TuneOptions& o;
  Environment env = environment();
  LayerSource source{o.source, "tune"};
  tune::TuningTable table = table_at(o.out, env);
  TuneResult result = {};

  void say(const std::string& what) const {
    if (o.progress) o.progress(what);
  }
  void save() const {
    if (!o.out.empty()) tune::write_table(table, o.out);
  }

  /// One layer in one format, on one rank.
  void tune(const LayerSource::Entry& entry, const std::string& format) {
    const std::vector<MoeLayer> layers = equal_layers(source.build(entry, format), env);
    for (const std::string& notice : layers.front().notices())
      result.notices.push_back(cat("layer ", layers.front().impl().weights().layer, ", ",
                                   show_format(layers.front().problem().format), ": ", notice));
    for (std::int64_t bucket : buckets_of(o.tokens)) {
      say(cat(show_format(layers.front().problem().format), ", up to ", bucket, " tokens"));
      LayerTuner(layers, o, table).tune(bucket, result.calls);
      save();
    }
  }
  /// The same on the ranks of a team of threads.
  void tune_spread(const LayerSource::Entry& entry, const std::string& format) {
    const PreparedLayer prepared = source.prepare(entry, format);
    for (std::int64_t bucket : buckets_of(o.tokens)) {
      say(cat(show_format(prepared.weights.problem.format), ", up to ", bucket, " tokens on ",
              ranks_of(o), " ranks"));
      RankTeam(nullptr, ranks_of(o)).each([&](comm::Group& group) {
        tune::TuningTable found = table;
        std::vector<TunedCall> calls = tune_rank(group, prepared, o, bucket, found);
        group.barrier("end of a tuning");  // the others have read the table that is replaced
        if (group.rank() != 0) return;
        table = std::move(found);
        result.calls.insert(result.calls.end(), calls.begin(), calls.end());
      });
      save();
    }
  }
};

}  // namespace

std::string_view tune_rule(std::int64_t ranks) {
  if (ranks > 1)
    return "times are of the whole layer from given fp32 logits, the slowest rank's; every rank "
           "runs its own weights again and again, so caches may hold them; every tactic that all "
           "ranks can run is run once in a round, in changing order; the best by median must then "
           "beat the plan's in new runs in turn by more than three standard errors; nothing is "
           "asked at the bucket's fewest tokens, and entries of the table are measured anew";
  return "times are of the whole layer from given fp32 logits, as `bench layer` takes its fresh "
         "ones; every tactic runs once in a round, in changing order; the best by median must then "
         "beat the plan's in new runs in turn by more than three standard errors, and be no slower "
         "at the bucket's fewest tokens";
}

std::vector<std::pair<Tactic, double>> with_times(const std::vector<Tactic>& candidates,
                                                  const std::vector<double>& medians) {
  std::vector<std::pair<Tactic, double>> out;
  for (std::size_t i = 0; i < medians.size(); ++i) out.emplace_back(candidates[i], medians[i]);
  return out;
}

TuneResult tune_layers(const TuneOptions& o) {
  check_options(o);
  Session session{o};
  if (!o.out.empty()) tune::check_table_path(o.out);  // what cannot be written answers now
  std::vector<std::string> formats = o.formats;
  if (formats.empty()) formats.push_back(o.source.build.format.value_or(""));
  for (const LayerSource::Entry& entry : session.source.layers())
    for (const std::string& format : formats) {
      session.say(cat("building layer ", entry.index, format.empty() ? "" : " in ", format));
      ranks_of(o) > 1 ? session.tune_spread(entry, format) : session.tune(entry, format);
    }
  session.result.notices = session.source.notices();
  session.result.entries = std::int64_t(session.table.entries.size());
  return std::move(session.result);
}

}  // namespace switchyard
