// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_search.h"

#include <algorithm>
#include <optional>

#include "switchyard/api/machine.h"
#include "switchyard/api/run_words.h"
#include "switchyard/base/check.h"
#include "switchyard/comm/factory.h"
#include "switchyard/core/deployment.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/probe.h"

namespace switchyard {
namespace {

constexpr Parallel kModes[] = {Parallel::kDep, Parallel::kDtp, Parallel::kTep, Parallel::kTtp};

bool exchanges(std::string_view parallel) { return parallel == "dep" || parallel == "dtp"; }

/// `one` in front of the rest of `all`, without a second one.
std::vector<std::string> first_of(std::string one, std::vector<std::string> all) {
  std::erase(all, one);
  all.insert(all.begin(), std::move(one));
  return all;
}

/// The configurations that the axes span, the resolver's own first; each once.
std::vector<SearchConfig> configs_of(const SearchAxes& axes, const SearchConfig& choice,
                                     const std::string& format, std::int64_t ranks) {
  std::vector<std::string> leaf_ids, modes, strategies;
  if (axes.leaf)
    for (Device device : {Device::kCpu, Device::kCuda})
      if (const leaves::Leaf* leaf = leaves::find_leaf(format, device).leaf)
        leaf_ids.push_back(leaf->id.str());
  if (axes.parallel && ranks > 1)
    for (Parallel mode : kModes) modes.emplace_back(to_string(mode));
  if (axes.comm && ranks > 1)
    for (const comm::Strategy* s : comm::strategies()) strategies.emplace_back(s->name);
  std::vector<SearchConfig> out;
  for (const std::string& leaf : first_of(choice.leaf, leaf_ids))
    for (const std::string& mode : first_of(choice.parallel, modes)) {
      const std::string own = mode == choice.parallel ? choice.strategy
                              : exchanges(mode)       ? "auto"
                                                      : "all_reduce";
      const bool asks = exchanges(mode) && axes.comm;
      for (const std::string& strategy : asks ? first_of(own, strategies) : std::vector{own})
        for (bool graph : axes.graph ? std::vector{false, true} : std::vector{false})
          out.push_back({leaf, mode, strategy, graph});
    }
  return out;
}

/// A graph is CUDA's; the search itself replays none.
SkippedConfig without_graph(const SearchConfig& c) {
  SkippedConfig out{.config = c, .skip = Skip::kRejected, .reject = {}, .detail = {}};
  const leaves::Leaf* leaf = leaves::find_leaf_by_id(c.leaf);
  const bool cuda = leaf != nullptr && leaf->device == Device::kCuda;
  out.reject = cuda ? Reject::kPathNotEnabled : Reject::kTopologyUnsupported;
  out.detail = cuda ? "a search replays no captured graph; bench layer without one times them"
                    : "the leaf runs on the CPU, where there is no graph to capture";
  return out;
}

SearchConfig config_of(const Measurement& m) { return {m.leaf, m.parallel, m.strategy, false}; }

class Search {
 public:
  Search(const BenchSearchOptions& o, BenchSearchResult& out)
      : o_(o), out_(out), ranks_(o.source.build.ep * o.source.build.tp) {}

  void run() {
    for (std::int64_t tokens : o_.tokens) at(tokens);
    std::stable_sort(out_.rows.begin(), out_.rows.end(), [](const auto& a, const auto& b) {
      return a.tokens != b.tokens ? a.tokens < b.tokens : a.measured.time_p50 < b.measured.time_p50;
    });
    for (std::size_t i = 0; i < out_.rows.size(); ++i)
      out_.rows[i].place =
          i > 0 && out_.rows[i].tokens == out_.rows[i - 1].tokens ? out_.rows[i - 1].place + 1 : 1;
    out_.ok = std::all_of(out_.rows.begin(), out_.rows.end(),
                          [](const auto& r) { return r.measured.ok; });
  }

 private:
  void at(std::int64_t tokens) {
    RunOptions source = o_.source;
    source.tokens = tokens;
    say("the resolver's choice", tokens);
    const Measurement chosen = measure(source);
    out_.choice = config_of(chosen);
    add(out_.choice, tokens, chosen);
    std::int64_t left = o_.max_configs - 1;
    for (const SearchConfig& c : configs_of(o_.axes, out_.choice, chosen.format, ranks_)) {
      if (measured(c, tokens)) continue;
      if (c.graph) {
        skip(without_graph(c));
      } else if (left <= 0) {
        skip({c, Skip::kMaxConfigs, {}, cat("the ", o_.max_configs, " in front are measured")});
      } else if (try_one(c, tokens)) {
        --left;
      }
    }
  }

  bool measured(const SearchConfig& c, std::int64_t tokens) const {
    return std::any_of(out_.rows.begin(), out_.rows.end(),
                       [&](const auto& r) { return r.tokens == tokens && r.config == c; });
  }

  /// Whether the configuration took a place among those that are measured.
  bool try_one(const SearchConfig& c, std::int64_t tokens) {
    RunOptions source = o_.source;
    source.tokens = tokens;
    if (o_.axes.leaf) {
      source.build.leaf = c.leaf;
      source.build.device.reset();  // the leaf pins its own
    }
    if (c.parallel != out_.choice.parallel) {
      const Parallel mode = to_parallel(c.parallel);
      const bool cuts = mode == Parallel::kDtp || mode == Parallel::kTtp;
      source.build.parallel = mode;
      source.build.ep = cuts ? 1 : ranks_;
      source.build.tp = cuts ? ranks_ : 1;
    }
    // A strategy that the caller pinned stays pinned.
    if (exchanges(c.parallel) && o_.axes.comm) source.build.comm = c.strategy;
    say(cat(c.leaf, ", ", c.parallel, ", ", c.strategy), tokens);
    try {
      const Measurement m = measure(source);
      const SearchConfig as_run = config_of(m);
      if (measured(as_run, tokens)) return false;  // by the name of what was chosen
      add(as_run, tokens, m);
      return true;
    } catch (const CannotServe& e) {
      skip({c, Skip::kRejected, e.reason(), e.what()});
    } catch (const UsageError& e) {
      skip({c, Skip::kUsage, {}, e.what()});
    } catch (const DeviceError& e) {
      skip({c, Skip::kDevice, {}, e.what()});
    }
    return false;
  }

  static Measurement measure(const RunOptions& source) {
    RunResult result = switchyard::run(source);
    require(result.measurements.size() == 1,
            "bench layer: a search ranks one layer; name it with its number");
    return std::move(result.measurements.front());
  }

  void add(const SearchConfig& config, std::int64_t tokens, const Measurement& m) {
    out_.rows.push_back({config, tokens, 0, config == out_.choice, m});
  }

  void skip(SkippedConfig skipped) {
    const bool known = std::any_of(out_.skipped.begin(), out_.skipped.end(),
                                   [&](const auto& s) { return s.config == skipped.config; });
    if (!known) out_.skipped.push_back(std::move(skipped));
  }

  void say(const std::string& what, std::int64_t tokens) const {
    if (o_.progress) o_.progress(cat(what, ", ", tokens, " tokens"));
  }

  const BenchSearchOptions& o_;
  BenchSearchResult& out_;
  std::int64_t ranks_;
};

/// What the processes must have been asked alike, before any of it is judged.
void agree_on(const BenchSearchOptions& o) {
  if (o.source.processes == nullptr) return;
  std::vector<Processes::Agreed> words = run_words("bench layer", o.source);
  std::erase_if(words, [](const Processes::Agreed& w) { return w.name == "tokens"; });
  std::string tokens, axes;
  for (std::int64_t t : o.tokens) tokens += cat(tokens.empty() ? "" : ",", t);
  for (const auto& [name, asked] : {std::pair{"leaf", o.axes.leaf},
                                    {"comm", o.axes.comm},
                                    {"parallel", o.axes.parallel},
                                    {"graph", o.axes.graph}})
    if (asked) axes += cat(axes.empty() ? "" : ",", name);
  words.insert(words.begin() + 1,
               {{"tokens", tokens}, {"search", axes}, {"max_configs", cat(o.max_configs)}});
  o.source.processes->agree(words);
}

}  // namespace

std::string SkippedConfig::reason() const {
  constexpr std::string_view kWords[] = {"cannot_serve", "max_configs", "usage", "device"};
  return std::string(reject ? to_string(*reject) : kWords[std::size_t(skip)]);
}

BenchSearchResult bench_search(const BenchSearchOptions& o) {
  agree_on(o);
  require(!o.tokens.empty(), "bench layer: no tokens are given; name at least one count");
  for (std::int64_t tokens : o.tokens)
    require(tokens >= 1, "bench layer: tokens = ", tokens, "; a call of none has no time to take");
  require(o.max_configs >= 1, "bench layer: max_configs = ", o.max_configs,
          " is below 1, the resolver's own choice");
  require(!o.axes.comm || o.source.build.comm.empty(), "bench layer: the strategy is pinned to '",
          o.source.build.comm, "' and searched; leave one of the two out");
  const std::string forced = o.axes.comm ? pinned_strategy(resolve::environment(), "") : "auto";
  require(forced == "auto", "bench layer: SWITCHYARD_COMM pins the strategy to '", forced,
          "', and it is searched; unset the switch, or leave comm out of the search");
  require(!o.axes.leaf || o.source.build.leaf.empty(), "bench layer: the leaf is pinned to '",
          o.source.build.leaf, "' and searched; leave one of the two out");
  BenchSearchResult out;
  Search(o, out).run();
  return out;
}

}  // namespace switchyard
