// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "switchyard/core/activation.h"
#include "switchyard/resolve/report.h"

// The one list of every struct's fields that are serialised. Writer and reader both walk it, and
// its length is compared with the struct's own, so no field can be left out of either.

namespace switchyard::resolve {

/// Walks T's fields: `static void visit(auto& value, auto&& f)` calls f(name, field) for each.
template <class T>
struct Fields;

template <>
struct Fields<Swiglu> {
  static void visit(auto& a, auto&& f) {
    f("clamp", a.clamp);
    f("clamp_after_silu", a.clamp_after_silu);
  }
};

template <>
struct Fields<SwigluBias> {
  static void visit(auto& a, auto&& f) {
    f("gate_sigmoid_scale", a.gate_sigmoid_scale);
    f("linear_offset", a.linear_offset);
    f("clamp", a.clamp);
  }
};

template <>
struct Fields<SiTu> {
  static void visit(auto& a, auto&& f) {
    f("gate_softcap", a.gate_softcap);
    f("linear_softcap", a.linear_softcap);
  }
};

template <>
struct Fields<Geglu> {
  static void visit(auto& a, auto&& f) { f("form", a.form); }
};
template <>
struct Fields<Gelu> {
  static void visit(auto& a, auto&& f) { f("form", a.form); }
};
template <>
struct Fields<Relu2> {
  static void visit(auto&, auto&&) {}
};
template <>
struct Fields<Silu> {
  static void visit(auto&, auto&&) {}
};
template <>
struct Fields<Relu> {
  static void visit(auto&, auto&&) {}
};
template <>
struct Fields<Identity> {
  static void visit(auto&, auto&&) {}
};

template <>
struct Fields<RoutingSpec> {
  static void visit(auto& r, auto&& f) {
    f("method", r.method);
    f("num_experts", r.num_experts);
    f("zero_experts", r.zero_experts);
    f("top_k", r.top_k);
    f("score", r.score);
    f("choice", r.choice);
    f("choice_bias", r.choice_bias);
    f("n_group", r.n_group);
    f("topk_group", r.topk_group);
    f("group_statistic", r.group_statistic);
    f("map", r.map);
    f("epsilon", r.epsilon);
    f("p", r.p);
    f("per_expert_scale", r.per_expert_scale);
    f("placement", r.placement);
    f("jitter", r.jitter);
    f("input_norm_eps", r.input_norm_eps);
  }
};

template <>
struct Fields<Problem> {
  static void visit(auto& p, auto&& f) {
    f("format", p.format);
    f("dtype", p.dtype);
    f("activations", p.activations);
    f("hidden", p.hidden);
    f("latent", p.latent);
    f("inter", p.inter);
    f("expert_bias", p.expert_bias);
    f("activation", p.activation);
    f("routing", p.routing);
    f("routed_scaling_factor", p.routed_scaling_factor);
    f("num_shared", p.num_shared);
    f("shared_inter", p.shared_inter);
    f("shared_gate", p.shared_gate);
    f("combine", p.combine);
  }
};

template <>
struct Fields<Environment> {
  static void visit(auto& e, auto&& f) {
    f("sm", e.sm);
    f("num_gpus", e.num_gpus);
    f("isa", e.isa);
    f("best_isa", e.best_isa);
    f("memory_bytes", e.memory_bytes);
    f("num_cpus", e.num_cpus);
    f("cpu_model", e.cpu_model);
    f("l3_bytes", e.l3_bytes);
    f("deps", e.deps);
    f("flags", e.flags);
    f("local_flags", e.local_flags);
    f("warnings", e.warnings);
    f("build", e.build);
  }
};

template <>
struct Fields<Deployment> {
  static void visit(auto& d, auto&& f) {
    f("device", d.device);
    f("ep", d.ep);
    f("tp", d.tp);
    f("parallel", d.parallel);
    f("slots", d.slots);
    f("eplb", d.eplb);
    f("lora", d.lora);
    f("finalize_fusion", d.finalize_fusion);
    f("fuse_shared", d.fuse_shared);
    f("env", d.env);
  }
};

template <>
struct Fields<Request> {
  static void visit(auto& r, auto&& f) {
    f("leaf", r.leaf);
    f("device", r.device);
    f("prefer", r.prefer);
    f("comm", r.comm);
  }
};

template <>
struct Fields<Rejection> {
  static void visit(auto& r, auto&& f) {
    f("candidate", r.candidate);
    f("reason", r.reason);
    f("detail", r.detail);
  }
};

template <>
struct Fields<Assumption> {
  static void visit(auto& a, auto&& f) {
    f("field", a.field);
    f("value", a.value);
  }
};

template <>
struct Fields<Knob> {
  static void visit(auto& k, auto&& f) {
    f("name", k.name);
    f("requested", k.requested);
    f("effective", k.effective);
  }
};

template <>
struct Fields<StrategyVerdict> {
  static void visit(auto& s, auto&& f) {
    f("strategy", s.strategy);
    f("reason", s.reason);
    f("detail", s.detail);
  }
};

template <>
struct Fields<Report> {
  static void visit(auto& r, auto&& f) {
    f("problem", r.problem);
    f("deployment", r.deployment);
    f("requested", r.requested);
    f("winner", r.winner);
    f("selected_by", r.selected_by);
    f("eligible", r.eligible);
    f("rejected", r.rejected);
    f("assumed", r.assumed);
    f("degraded", r.degraded);
    f("degraded_from", r.degraded_from);
    f("knobs", r.knobs);
    f("strategies", r.strategies);
    f("warnings", r.warnings);
    f("fingerprint", r.fingerprint);
  }
};

/// How many fields Fields<T> lists.
template <class T>
std::size_t num_listed_fields() {
  std::size_t count = 0;
  T value{};
  Fields<T>::visit(value, [&](const char*, auto&) { ++count; });
  return count;
}

}  // namespace switchyard::resolve
