// SPDX-License-Identifier: Apache-2.0
#include "tests/support/selection_cases.h"

#include "switchyard/resolve/probe.h"
#include "switchyard/resolve/switches.h"

namespace switchyard::test {

Environment plain_environment() {
  Environment env;
  env.isa = CpuIsa::kAvx512;
  env.best_isa = CpuIsa::kAmx;
  env.memory_bytes = 7'000'000'000;
  env.num_cpus = 5;
  env.cpu_model = "Abacus 9";
  env.l3_bytes = 48 << 20;
  env.deps = {"cuda"};
  resolve::SwitchReading switches = resolve::read_switches({});
  env.flags = switches.flags;
  env.local_flags = switches.local_flags;
  env.build = "1.2.3+0123456789ab";
  return env;
}

Environment gpu_environment(int sm) { return resolve::with_gpu(plain_environment(), sm); }

Deployment deployment_on(Device device, Environment env) {
  Deployment d;
  d.device = device;
  d.env = std::move(env);
  return d;
}

Problem problem_of(std::string_view format) {
  Problem p;
  p.format = format;
  p.hidden = 264;
  p.inter = 144;
  p.routing = make_routing(RoutingMethodType::kRenormalize, 12, 3);
  p.routed_scaling_factor = 1.75f;
  return p;
}

namespace {

std::vector<Activation> activations() {
  std::vector<float> per_expert;
  for (int e = 0; e < 12; ++e) per_expert.push_back(5.0f + float(e) / 8);
  return {Swiglu{.clamp = PerExpert(7.0f)},
          Swiglu{.clamp = PerExpert(per_expert), .clamp_after_silu = true},
          SwigluBias{1.702f, 1.0f, PerExpert(7.0f)},
          SwigluBias{PerExpert(per_expert), 0.5f, std::nullopt},
          SiTu{},
          Geglu{GeluForm::kErf},
          Relu2{},
          Silu{},
          Gelu{GeluForm::kTanh},
          Relu{},
          Identity{}};
}

RoutingSpec routing_of(RoutingMethodType method) {
  std::int64_t k = method == RoutingMethodType::kLlama4        ? 1
                   : method == RoutingMethodType::kSparseMixer ? 2
                                                               : 3;
  return make_routing(method, 12, k);
}

template <class F>
void add(std::vector<ProblemCase>& out, std::string_view format, std::string name, F change) {
  Problem p = problem_of(format);
  change(p);
  out.push_back({std::move(name), std::move(p)});
}

void add_routings(std::vector<ProblemCase>& out, std::string_view format) {
  for (int m = 0; m <= int(RoutingMethodType::kUnspecified); ++m) {
    RoutingMethodType method{std::uint8_t(m)};
    add(out, format, "routing " + std::string(to_string(method)),
        [&](Problem& p) { p.routing = routing_of(method); });
  }
  add(out, format, "grouped routing", [](Problem& p) {
    p.routing = routing_of(RoutingMethodType::kDeepSeekV3);
    p.routing.n_group = 4;
    p.routing.topk_group = 2;
  });
  add(out, format, "zero experts", [](Problem& p) { p.routing.zero_experts = 4; });
}

}  // namespace

std::vector<ProblemCase> problem_axes(std::string_view format) {
  std::vector<ProblemCase> out = {{"plain", problem_of(format)}};
  for (Dtype t : {Dtype::kF32, Dtype::kFp16})
    add(out, format, "dtype " + std::string(to_string(t)), [&](Problem& p) { p.dtype = t; });
  for (ActivationMode m : {ActivationMode::kBf16, ActivationMode::kF32})
    add(out, format, "mode " + std::string(to_string(m)), [&](Problem& p) { p.activations = m; });
  for (const Activation& a : activations())
    add(out, format, describe(a), [&](Problem& p) { p.activation = a; });
  add_routings(out, format);
  for (auto [h, i] : {std::pair{2880, 2880}, {2048, 1408}, {96, 32}, {130, 98}, {131, 97}})
    add(out, format, "H " + std::to_string(h) + " I " + std::to_string(i),
        [h = h, i = i](Problem& p) {
          p.hidden = h;
          p.inter = i;
        });
  add(out, format, "latent", [](Problem& p) { p.latent = 130; });
  add(out, format, "odd latent", [](Problem& p) { p.latent = 129; });
  add(out, format, "odd hidden, even latent", [](Problem& p) { p.hidden = 131, p.latent = 130; });
  add(out, format, "biases", [](Problem& p) { p.expert_bias = true; });
  add(out, format, "shared", [](Problem& p) {
    p.num_shared = 2;
    p.shared_inter = 2 * p.inter;
    p.shared_gate = true;
  });
  add(out, format, "low-precision combine",
      [](Problem& p) { p.combine = CombinePrecision::kNvfp4; });
  return out;
}

std::vector<DeploymentCase> deployment_axes(Device device, const Environment& env) {
  std::vector<DeploymentCase> out;
  auto add = [&](std::string name, auto change) {
    Deployment d = deployment_on(device, env);
    change(d);
    out.push_back({std::move(name), std::move(d)});
  };
  add("one rank", [](Deployment&) {});
  add("lora", [](Deployment& d) { d.lora = true; });
  add("ep 5", [](Deployment& d) { d.ep = 5, d.parallel = Parallel::kDep; });
  add("ep 13", [](Deployment& d) { d.ep = 13, d.parallel = Parallel::kDep; });
  add("tp 4", [](Deployment& d) { d.tp = 4, d.parallel = Parallel::kTtp; });
  add("tp 64", [](Deployment& d) { d.tp = 64, d.parallel = Parallel::kDtp; });
  add("slots 16 over 4", [](Deployment& d) { d.slots = 16, d.ep = 4, d.eplb = true; });
  add("slots 14 over 4", [](Deployment& d) { d.slots = 14, d.ep = 4, d.eplb = true; });
  add("slots 11", [](Deployment& d) { d.slots = 11; });
  add("no finalize fusion", [](Deployment& d) { d.finalize_fusion = false; });
  add("fused shared", [](Deployment& d) { d.fuse_shared = true; });
  return out;
}

}  // namespace switchyard::test
