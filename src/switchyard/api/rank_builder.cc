// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/rank_builder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "switchyard/base/check.h"
#include "switchyard/comm/strategy.h"
#include "switchyard/resolve/probe.h"

namespace switchyard {
namespace {

constexpr const char* kPhase = "the ranks' share of the processors";

}  // namespace

int rank_threads(comm::Group& group) {
  std::string mine;
  for (int cpu : resolve::usable_cpus()) mine += cat(cpu, ",");
  const std::vector<std::string> all = group.all_gather(mine, kPhase);
  std::vector<std::string> cpus;
  for (const std::string& list : all)
    for (std::size_t at = 0; at < list.size(); at = list.find(',', at) + 1)
      cpus.push_back(list.substr(at, list.find(',', at) - at));
  std::sort(cpus.begin(), cpus.end());
  const auto distinct = std::unique(cpus.begin(), cpus.end()) - cpus.begin();
  const std::int64_t own = std::count(mine.begin(), mine.end(), ',');
  return int(
      std::clamp<std::int64_t>(std::min<std::int64_t>(distinct / group.size(), own), 1, 1024));
}

layer::RankOptions part_options(const comm::Group& group, const PreparedLayer& p,
                                std::shared_ptr<ThreadPool> pool) {
  layer::RankOptions r;
  r.layer = p.options;
  r.layer.memory_bytes /= group.size();
  if (group.rank() != 0) r.layer.progress = nullptr;
  r.layer.pool = std::move(pool);
  r.parallel = p.deployment.parallel;
  r.tp = p.deployment.tp;
  r.strategy = p.join.strategy;
  r.slot_experts = p.slot_experts;
  r.quantise_first = p.deployment.env.flag("SWITCHYARD_POST_QUANT_DISPATCH") != "0";
  r.fingerprint = p.state->report.fingerprint;
  for (const auto& [name, value] : p.deployment.env.flags) r.agreed.push_back({name, value});
  return r;
}

void check_pinned_leaf(std::string_view caller, const PreparedLayer& p, const BuildOptions& build) {
  require(p.join.strategy != &comm::fused() || build.leaf.find("fused_moe") == std::string::npos,
          caller, ": the leaf is pinned to ", build.leaf,
          ", and strategy fused runs a mega_moe leaf in its place; leave one of the two out");
}

void calibrate_rank(layer::RankLayer& layer, const BuildOptions& build,
                    std::vector<std::string>& notices) {
  std::optional<LayerBuilder::Calibration> c;
  comm::guarded(layer.group(), "calibration of the ranks", [&] {
    c = LayerBuilder::calibration(layer.part(), layer.needs_calibration(), build, notices);
  });
  if (!c) return;
  const std::int64_t all = std::int64_t(c->token_ids.size()), ranks = layer.group().size();
  const std::int64_t first = all * layer.group().rank() / ranks;
  const std::int64_t count = all * (layer.group().rank() + 1) / ranks - first;
  layer.calibrate(count, c->hidden.data() + first * layer.part().problem().hidden,
                  c->token_ids.data() + first);
}

}  // namespace switchyard
