// SPDX-License-Identifier: Apache-2.0
// Prints what the tables of the pages in docs/ say, as JSON, by asking the library itself:
// scripts/docs.py renders it. Nothing in it depends on the machine.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "switchyard/api/strategies.h"
#include "switchyard/base/nearest.h"
#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/quantization.h"
#include "switchyard/core/preset.h"
#include "switchyard/leaves/registry.h"
#include "switchyard/ops/grouped_gemm/panel.h"
#include "switchyard/resolve/backends.h"
#include "switchyard/resolve/switches.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;
using leaves::Leaf;

constexpr Device kDevices[] = {Device::kCpu, Device::kCuda};

/// One question to a gate: a layer and where it is placed.
struct Question {
  Problem problem;
  Deployment deployment;
};

/// A change of a question that is served; what a gate answers to it is a fact.
struct Change {
  std::string group, text;
  std::function<void(Question&)> apply;
};

/// A question that `leaf` has no fault to find with, on a machine that has all it needs.
Question plain(const Leaf& leaf) {
  Question q;
  q.problem = make_preset("tiny");
  q.problem.format = leaf.id.quant;
  q.deployment.device = leaf.device;
  q.deployment.env.deps = {"cuda", "mpi", "nccl"};
  q.deployment.env.sm = leaf.device == Device::kCuda ? 90 : 0;
  return q;
}

Eligibility ask(const Leaf& leaf, std::initializer_list<const Change*> changes) {
  Question q = plain(leaf);
  for (const Change* change : changes) change->apply(q);
  return leaf.can_implement(q.problem, q.deployment);
}

/// Faults, one for each thing that a gate may look at. The last ones overwrite a field that an
/// earlier one sets, and stand behind it for that reason.
std::vector<Change> faults() {
  return {
      {"", "another format", [](Question& q) { q.problem.format = "another"; }},
      {"", "placed on the other device",
       [](Question& q) {
         bool cpu = q.deployment.device == Device::kCpu;
         q.deployment.device = cpu ? Device::kCuda : Device::kCpu;
       }},
      {"", "the library `cuda` is absent", [](Question& q) { q.deployment.env.deps.clear(); }},
      {"", "a GPU older than sm 90", [](Question& q) { q.deployment.env.sm = 80; }},
      {"", "hidden states in f32", [](Question& q) { q.problem.dtype = Dtype::kF32; }},
      {"", "`activations = f32`",
       [](Question& q) { q.problem.activations = ActivationMode::kF32; }},
      {"", "an odd hidden width", [](Question& q) { q.problem.hidden += 1; }},
      {"", "an odd expert width", [](Question& q) { q.problem.inter += 1; }},
      {"", "slots that do not divide by ep",
       [](Question& q) {
         q.deployment.slots = q.problem.num_experts() + 1;
         q.deployment.ep = 2;
       }},
      {"", "fewer slots than experts",
       [](Question& q) { q.deployment.slots = q.problem.num_experts() - 1; }},
      {"", "more EP ranks than slots", [](Question& q) { q.deployment.ep = kMaxRanks; }},
      {"", "routed-expert adapters", [](Question& q) { q.deployment.lora = true; }},
      {"", "zero experts beside latent projections",
       [](Question& q) {
         q.problem.latent = q.problem.hidden / 2;
         q.problem.routing.zero_experts = 4;
       }},
      {"", "zero experts", [](Question& q) { q.problem.routing.zero_experts = 2; }},
  };
}

bool says(const Eligibility& verdict, const Eligibility& fault) {
  return !verdict.eligible() && verdict.reason() == fault.reason() &&
         verdict.detail() == fault.detail();
}

/// The faults that `leaf` names, in the order of its gate: of two at once, the one that is named
/// comes first.
Json gate_order(const Leaf& leaf) {
  Eligibility base = ask(leaf, {});
  std::vector<Change> all = faults();
  std::vector<std::pair<const Change*, Eligibility>> named;
  for (const Change& fault : all) {
    Eligibility verdict = ask(leaf, {&fault});
    bool same = !base.eligible() && says(verdict, base);
    if (!verdict.eligible() && !same) named.emplace_back(&fault, verdict);
  }
  std::vector<std::size_t> before(named.size(), 0);
  for (std::size_t a = 0; a < named.size(); ++a)
    for (std::size_t b = a + 1; b < named.size(); ++b) {
      Eligibility both = ask(leaf, {named[a].first, named[b].first});
      bool first = !both.eligible() && both.reason() == named[a].second.reason();
      bool same = named[a].second.reason() == named[b].second.reason();
      ++before[first || same ? b : a];
    }
  std::vector<std::size_t> order(named.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return before[a] < before[b]; });
  Json out = Json::array();
  for (std::size_t i : order)
    out.push_back({{"fault", named[i].first->text},
                   {"reason", to_string(named[i].second.reason())},
                   {"detail", named[i].second.detail()}});
  if (!base.eligible())
    out.push_back({{"fault", "kernels that are not built"},
                   {"reason", to_string(base.reason())},
                   {"detail", base.detail()}});
  return out;
}

template <std::size_t... i>
void add_activations(std::vector<Change>& out, std::index_sequence<i...>) {
  (out.push_back(
       {"activation", std::string(to_string(ActivationType(i))),
        [](Question& q) { q.problem.activation = std::variant_alternative_t<i, Activation>{}; }}),
   ...);
}

void add_routings(std::vector<Change>& out) {
  for (int m = 0; m < int(RoutingMethodType::kUnspecified); ++m) {
    auto method = RoutingMethodType(m);
    out.push_back({"routing", std::string(to_string(method)), [method](Question& q) {
                     q.problem.routing =
                         make_routing(method, q.problem.num_experts(), q.problem.top_k());
                   }});
  }
}

/// What a layer or its placement can ask for, with the answer of every leaf in support.md.
std::vector<Change> features() {
  std::vector<Change> out;
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kF32})
    out.push_back({"hidden states", std::string(to_string(dtype)),
                   [dtype](Question& q) { q.problem.dtype = dtype; }});
  for (ActivationMode mode : {ActivationMode::kFormat, ActivationMode::kBf16, ActivationMode::kF32})
    out.push_back({"activations", std::string(to_string(mode)),
                   [mode](Question& q) { q.problem.activations = mode; }});
  add_activations(out, std::make_index_sequence<std::variant_size_v<Activation>>{});
  add_routings(out);
  auto layer = [&](std::string text, std::function<void(Question&)> apply) {
    out.push_back({"layer", std::move(text), std::move(apply)});
  };
  layer("expert biases", [](Question& q) { q.problem.expert_bias = true; });
  layer("shared expert", [](Question& q) {
    q.problem.num_shared = 1;
    q.problem.shared_inter = q.problem.inter;
  });
  layer("latent projections", [](Question& q) { q.problem.latent = q.problem.hidden / 2; });
  layer("zero experts", [](Question& q) { q.problem.routing.zero_experts = 2; });
  layer("odd hidden width", [](Question& q) { q.problem.hidden += 1; });
  layer("odd expert width", [](Question& q) { q.problem.inter += 1; });
  layer("routed-expert adapters", [](Question& q) { q.deployment.lora = true; });
  return out;
}

/// Verdict of every format on `device` for every feature: "yes" or the reason.
Json matrix(Device device) {
  Json out = Json::array();
  for (const Change& feature : features()) {
    Json row = {{"group", feature.group}, {"feature", feature.text}, {"cells", Json::array()}};
    for (const Leaf* leaf : leaves::all_leaves(device)) {
      Eligibility verdict = ask(*leaf, {&feature});
      row["cells"].push_back(verdict.eligible() ? "yes" : to_string(verdict.reason()));
    }
    out.push_back(std::move(row));
  }
  return out;
}

Json formats_json() {
  Json out = Json::array();
  for (const leaves::FormatLeaves* f : leaves::all_formats()) {
    const formats::WeightLayout& l = f->cpu.weights;
    out.push_back({{"format", show_format(f->cpu.id.quant)},
                   {"doc", f->cpu.doc},
                   {"cpu", f->cpu.id.str()},
                   {"cuda", f->cuda.id.str()},
                   {"cpu_built", f->cpu.ffn != nullptr},
                   {"cuda_built", ask(f->cuda, {}).eligible()},
                   {"element", to_string(l.element)},
                   {"bits", bits_of(l.element)},
                   {"scale", to_string(l.scale)},
                   {"block_rows", l.block_rows},
                   {"block_cols", l.block_cols},
                   {"global_scale", l.global_scale},
                   {"activation", formats::to_string(f->cpu.activation)},
                   {"static", formats::is_static(f->cpu.activation)},
                   {"stored_bytes", l.stored_bytes(1024, 1024)}});
  }
  return out;
}

Json switches_json() {
  Json out = Json::array();
  for (const resolve::Switch& row : resolve::switch_table())
    out.push_back({{"name", row.name},
                   {"status", to_string(row.status)},
                   {"default", row.default_value},
                   {"in_fingerprint", row.in_fingerprint},
                   {"replacement", row.replacement},
                   {"doc", row.doc}});
  return out;
}

Json strategies_json() {
  Json out = Json::array();
  for (const resolve::StrategyVerdict& v : api::judge_exchanges(Environment{}))
    out.push_back({{"strategy", v.strategy},
                   {"reason", v.reason ? to_string(*v.reason) : ""},
                   {"detail", v.detail}});
  return out;
}

Json presets_json() {
  Json out = Json::array();
  for (const std::string& name : preset_names()) {
    Problem p = make_preset(name);
    out.push_back({{"preset", name},
                   {"hidden", p.hidden},
                   {"inter", p.inter},
                   {"experts", p.num_experts()},
                   {"top_k", p.top_k()},
                   {"routing", to_string(p.routing.method)},
                   {"groups", p.routing.n_group},
                   {"kept", p.routing.topk_group},
                   {"shared", p.num_shared},
                   {"factor", cat(p.routed_scaling_factor)},
                   {"activation", describe(p.activation)}});
  }
  return out;
}

Json tiers_json() {
  Json out = Json::array();
  for (CpuIsa isa :
       {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kZen4, CpuIsa::kAmx})
    out.push_back({{"tier", to_string(isa)}, {"runs", to_string(ops::panel_twin(isa).tier)}});
  return out;
}

Json reasons_json() {
  Json out = Json::array();
  for (int r = 0; r <= int(Reject::kNotAnImpl); ++r) out.push_back(to_string(Reject(r)));
  return out;
}

Json facts() {
  Json out;
  out["formats"] = formats_json();
  for (Device device : kDevices) {
    std::string name(to_string(device));
    // Two formats tell all gates of a device apart: one of 4 bits, one of more.
    for (const char* format : {"nvfp4", "fp8"})
      out["gates"][name][format] = gate_order(*leaves::find_leaf(format, device).leaf);
    out["matrix"][name] = matrix(device);
  }
  out["reasons"] = reasons_json();
  out["switches"] = switches_json();
  out["strategies"] = strategies_json();
  out["presets"] = presets_json();
  out["tiers"] = tiers_json();
  out["preference_words"] = resolve::preference_words();
  out["families"] = checkpoint::known_families();
  out["schemas"] = checkpoint::known_schemas();
  return out;
}

}  // namespace
}  // namespace switchyard

int main() {
  std::string text = switchyard::facts().dump(1) + "\n";
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() ? 0 : 1;
}
