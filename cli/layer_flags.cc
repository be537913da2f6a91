// SPDX-License-Identifier: Apache-2.0
#include "cli/layer_flags.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/leaves/registry.h"

namespace switchyard::cli {
namespace {

/// Errors:  UsageError for a query that contradicts itself or names no segment.
bool names_cuda(const std::string& leaf) {
  return !leaf.empty() && leaves::parse_leaf_query(leaf).fields[1] == to_string(Device::kCuda);
}

}  // namespace

void RankFlags::add(Arguments& args) {
  args.integer("--ranks", kRanks, ranks, "Ranks; alone it means --ep, or --tp under dtp and ttp");
  args.text(
      "--parallel", [this](const std::string& v) { parallel = to_parallel(v); },
      "dep, dtp, tep or ttp: attention by data or tensor, MoE by expert or tensor", "MODE");
  args.integer("--ep", kRanks, ep, "Ranks that divide the experts");
  args.integer("--tp", kRanks, tp, "Ranks that divide each expert");
  args.integer("--slots", {1, kMaxSlots}, slots, "Expert slots; the number of experts by default");
  args.text("--comm", comm, "Pins the exchange strategy", "NAME");
}

void RankFlags::start_with(std::int64_t processes) {
  if (processes > 1 && !ranks && !ep && !tp) ranks = processes;
}

Deployment RankFlags::deployment() const {
  Deployment d;
  const bool cuts = parallel == Parallel::kDtp || parallel == Parallel::kTtp;
  d.tp = tp.value_or(cuts && !ep ? ranks.value_or(1) : 1);
  d.ep = ep.value_or(tp || cuts ? 1 : ranks.value_or(1));
  require(!ranks || *ranks == d.ranks(), "--ranks = ", ranks.value_or(0), " contradicts --ep ",
          d.ep, " x --tp ", d.tp, " = ", d.ranks(), "; drop --ranks or make them agree");
  require(!cuts || d.ep == 1, "--parallel ", to_string(parallel.value_or(Parallel::kTtp)),
          " cuts every expert and divides none of them, and ", ep ? "--ep " : "--ranks over --tp ",
          d.ep, " divides them; ask for --tp ", d.ranks(), ", or for --parallel ",
          parallel == Parallel::kDtp ? "dep" : "tep");
  d.parallel = parallel.value_or(d.ep > 1 ? Parallel::kDep : Parallel::kTtp);
  d.slots = slots.value_or(0);
  d.check();
  return d;
}

void BuildFlags::add(Arguments& args) {
  args.text(
      "--device", [this](const std::string& v) { build.device = to_device(v); },
      "cpu (default) or cuda; a pin", "DEVICE");
  args.text(
      "--format", [this](const std::string& v) { build.format = v; },
      "Converts the routed experts at load; their own by default", "FORMAT");
  args.text(
      "--activations", [this](const std::string& v) { build.activations = to_activation_mode(v); },
      "format (default), bf16 or f32", "MODE");
  args.text("--calibrate", calibrate, "File with hidden_states to set static scales on", "FILE");
  args.text("--tuning", build.tuning, "A table that `switchyard tune` wrote on this machine",
            "FILE");
  args.text("--leaf", build.leaf, "Pins the leaf: an id, or a part of one", "ID");
  args.text("--prefer", build.prefer, "Prefers a device, or an ancestor's backend by its word");
  args.toggle("--with-parallel-mlp", build.with_parallel_mlp,
              "Granite: adds its shared_mlp, which stands beside the MoE block");
  args.integer(
      "--threads", kThreads, [this](std::int64_t v) { build.threads = int(v); },
      "Threads; every CPU by default");
  args.integer(
      "--seed", kSeed, [this](std::int64_t v) { build.seed = std::uint64_t(v); },
      "Seed of everything random (default 1)");
}

BuildOptions BuildFlags::options() const {
  BuildOptions out = build;
  if (!out.device && names_cuda(out.leaf)) out.device = Device::kCuda;
  return out;
}

void take_format(const std::string& word, std::vector<std::string>& formats) {
  if (word == "all") {
    require(formats.empty(), "--formats has all beside others; keep one");
    formats = leaves::format_names();
    return;
  }
  const std::string format = leaves::to_format(word);
  require(std::find(formats.begin(), formats.end(), format) == formats.end(), "--formats names ",
          word, " twice; name it once");
  formats.push_back(format);
}

}  // namespace switchyard::cli
