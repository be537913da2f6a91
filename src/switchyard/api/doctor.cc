// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "switchyard/api/bench_allreduce.h"
#include "switchyard/api/machine.h"
#include "switchyard/api/strategies.h"
#include "switchyard/base/nearest.h"
#include "switchyard/base/version.h"
#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/resolve/probe.h"
#include "switchyard/resolve/probe_cuda.h"
#include "switchyard/resolve/resolver.h"
#include "switchyard/tune/shipped.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

/// Whether one format runs on one device of this machine, and why not.
struct FormatVerdict {
  std::string format, leaf;
  Device device = Device::kCpu;
  std::optional<resolve::Rejection> rejection;
};

struct Checkup {
  Environment env;
  std::vector<FormatVerdict> formats;
  std::vector<PatternVerdict> patterns;  // of the fused all-reduce
  std::vector<resolve::PeerGap> gaps;    // between GPUs
  bool ok = false;
};

FormatVerdict ask(const std::string& format, Device device, const Environment& env) {
  Problem problem = make_preset("tiny");
  problem.format = format;
  Deployment here;
  here.device = device;
  here.env = env;
  resolve::Request pin;
  pin.device = device;
  resolve::Report report = resolve::resolve(problem, here, pin);
  FormatVerdict out{format, leaves::find_leaf(format, device).leaf->id.str(), device, {}};
  for (const resolve::Rejection& rejection : report.rejected)
    if (rejection.candidate == out.leaf) out.rejection = rejection;
  return out;
}

Checkup examine(std::optional<Device> wanted) {
  Checkup out;
  out.env = resolve::environment();
  if (out.env.num_gpus > 0) out.gaps = resolve::probe_gpus().gaps;
  for (Device device : {Device::kCpu, Device::kCuda}) {
    if (device != wanted.value_or(device)) continue;
    for (const std::string& format : leaves::format_names())
      out.formats.push_back(ask(format, device, out.env));
    for (const PatternVerdict& v : judge_allreduce(device)) out.patterns.push_back(v);
  }
  out.ok = std::any_of(out.formats.begin(), out.formats.end(),
                       [](const FormatVerdict& v) { return !v.rejection; });
  return out;
}

Json switches_json(const Environment& env) {
  Json out = Json::array();
  for (const resolve::Switch& row : resolve::switch_table()) {
    Json entry = {{"name", row.name}, {"status", to_string(row.status)}, {"doc", row.doc}};
    if (row.status == resolve::SwitchStatus::kHonoured) {
      entry["value"] = env.flag(row.name);
      entry["default"] = row.default_value;
      entry["in_fingerprint"] = row.in_fingerprint;
    } else {
      entry["replacement"] = row.replacement;
    }
    out.push_back(std::move(entry));
  }
  return out;
}

Json formats_json(const std::vector<FormatVerdict>& formats) {
  Json out = Json::array();
  for (const FormatVerdict& v : formats) {
    Json entry = {{"format", show_format(v.format)},
                  {"device", to_string(v.device)},
                  {"leaf", v.leaf},
                  {"ok", !v.rejection},
                  {"reason", nullptr},
                  {"detail", ""}};
    if (v.rejection) entry["reason"] = to_string(v.rejection->reason);
    if (v.rejection) entry["detail"] = v.rejection->detail;
    out.push_back(std::move(entry));
  }
  return out;
}

Json strategies_json(const Environment& env) {
  Json out = Json::array();
  for (const resolve::StrategyVerdict& v : api::judge_exchanges(env))
    out.push_back({{"strategy", v.strategy},
                   {"ok", !v.reason},
                   {"reason", v.reason ? Json(to_string(*v.reason)) : Json(nullptr)},
                   {"detail", v.detail}});
  return out;
}

Json patterns_json(const std::vector<PatternVerdict>& patterns) {
  Json out = Json::array();
  for (const PatternVerdict& v : patterns) {
    Json entry = {{"value", int(v.pattern)},
                  {"pattern", ops::to_string(v.pattern)},
                  {"device", to_string(v.device)},
                  {"ok", v.eligibility.eligible()},
                  {"reason", nullptr},
                  {"detail", v.eligibility.detail()}};
    if (!v.eligibility.eligible()) entry["reason"] = to_string(v.eligibility.reason());
    out.push_back(std::move(entry));
  }
  return out;
}

/// The choices of tactics that ship with the library, by GPU.
Json shipped_json() {
  Json out = Json::array();
  for (const tune::ShippedRows& gpu : tune::all_shipped())
    out.push_back({{"gpu", gpu.gpu},
                   {"choices", gpu.rows.size()},
                   {"kernels", gpu.kernels},
                   {"used", gpu.kernels == tile_kernels()},
                   {"detail", tune::shipped_line(gpu, tile_kernels())}});
  return out;
}

Json to_json(const Checkup& c) {
  Json built_in = Json::object();
  for (const char* dep : {"cuda", "mpi", "nccl"}) built_in[dep] = c.env.has_dep(dep);
  return {{"ok", c.ok},
          {"twins", twins()},
          {"cpu",
           {{"isa", to_string(running_tier(c.env))},
            {"best_isa", to_string(c.env.best_isa)},
            {"cpus", c.env.num_cpus},
            {"memory_bytes", c.env.memory_bytes}}},
          {"gpu",
           {{"count", c.env.num_gpus},
            {"sm", c.env.sm},
            {"peer_access", c.env.num_gpus < 2 ? Json(nullptr) : Json(c.gaps.empty())}}},
          {"built_in", built_in},
          {"switches", switches_json(c.env)},
          {"warnings", c.env.warnings},
          {"formats", formats_json(c.formats)},
          {"strategies", strategies_json(c.env)},
          {"allreduce_patterns", patterns_json(c.patterns)},
          {"tile_kernels", tile_kernels()},
          {"shipped_tactics", shipped_json()}};
}

// ---- for a terminal ----

std::string padded(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

std::string line(std::string_view label, std::string_view text) {
  return cat(padded(label, 13), text, "\n");
}

std::string built(const Environment& env, std::string_view dep) {
  return cat(dep, env.has_dep(dep) ? " built in" : " not built in");
}

std::string peers_text(const Environment& env, const std::vector<resolve::PeerGap>& gaps) {
  if (env.num_gpus < 2) return "";
  if (gaps.empty()) return ", each can address the others";
  return cat(", GPU ", gaps[0].gpu, " cannot address GPU ", gaps[0].peer);
}

std::string machine_text(const Environment& env, const std::vector<resolve::PeerGap>& gaps) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  std::string gpus = env.num_gpus == 0 ? "none" : cat(env.num_gpus, ", the first is sm ", env.sm);
  gpus += peers_text(env, gaps);
  const std::string model = env.cpu_model.empty() ? "" : cat(env.cpu_model, ", ");
  return line("version", cat(version(), " (", commit(), "), twins: ", twins())) +
         line("cpu", cat(model, env.num_cpus, " CPUs, best tier ", to_string(env.best_isa),
                         ", running ", to_string(running_tier(env)))) +
         line("memory", cat(env.memory_bytes / kGiB, " GiB available")) + line("gpu", gpus) +
         line("libraries", join({built(env, "cuda"), built(env, "mpi"), built(env, "nccl")}));
}

std::string verdict_text(const FormatVerdict& v) {
  if (!v.rejection) return "runs";
  return cat(to_string(v.rejection->reason), ": ", v.rejection->detail);
}

// Formats of one device that share their verdict share a line.
std::string formats_text(const std::vector<FormatVerdict>& formats) {
  std::string out;
  for (auto first = formats.begin(); first != formats.end();) {
    std::vector<std::string> names;
    auto at = first;
    for (; at != formats.end() && at->device == first->device &&
           verdict_text(*at) == verdict_text(*first);
         ++at)
      names.emplace_back(show_format(at->format));
    out += line(out.empty() ? "formats" : "",
                cat(to_string(first->device), ": ", verdict_text(*first)));
    for (std::size_t i = 0; i < names.size(); i += 4)
      out += line("", "  " + join({names.begin() + std::ptrdiff_t(i),
                                   names.begin() + std::ptrdiff_t(std::min(i + 4, names.size()))}));
    first = at;
  }
  return out;
}

std::string switches_text(const Environment& env) {
  std::string out;
  for (const resolve::Switch& row : resolve::switch_table()) {
    if (row.status != resolve::SwitchStatus::kHonoured) continue;
    std::string value = cat(env.flag(row.name));
    std::string mark = value == row.default_value ? "" : cat(" (default ", row.default_value, ")");
    out += line(out.empty() ? "switches" : "", cat(padded(row.name, 34), value, mark));
  }
  return out;
}

// Patterns of one device that share their verdict share a line.
std::string patterns_text(const std::vector<PatternVerdict>& patterns) {
  std::string out;
  for (auto first = patterns.begin(); first != patterns.end();) {
    auto same = [&](const PatternVerdict& v) {
      return v.device == first->device && v.eligibility.detail() == first->eligibility.detail();
    };
    const auto end = std::find_if_not(first, patterns.end(), same);
    const std::string verdict =
        first->eligibility.eligible()
            ? first->device == Device::kCpu ? "run on CPU ranks" : "run between GPUs"
            : cat(to_string(first->eligibility.reason()), ": ", first->eligibility.detail());
    out += line(out.empty() ? "all-reduce" : "",
                cat(to_string(first->device), ": patterns ", int(first->pattern), "-",
                    int((end - 1)->pattern), " ", verdict));
    first = end;
  }
  return out;
}

std::string to_text(const Checkup& c) {
  std::string out = machine_text(c.env, c.gaps) + switches_text(c.env);
  std::string label = "warnings";
  for (const std::string& warning : c.env.warnings) out += line(std::exchange(label, ""), warning);
  out += formats_text(c.formats);
  label = "strategies";
  for (const resolve::StrategyVerdict& v : api::judge_exchanges(c.env))
    out += line(std::exchange(label, ""), v.strategy + ": " + (v.reason ? v.detail : "can serve"));
  out += patterns_text(c.patterns);
  label = "tactics";
  for (const tune::ShippedRows& gpu : tune::all_shipped())
    out += line(std::exchange(label, ""), tune::shipped_line(gpu, tile_kernels()));
  return out + line("fingerprint", c.env.fingerprint());
}

}  // namespace

Explanation doctor(std::optional<Device> device) {
  Checkup checkup = examine(device);
  return {.served = checkup.ok, .json = to_json(checkup).dump(), .text = to_text(checkup)};
}

}  // namespace switchyard
