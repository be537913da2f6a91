// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/sketch.h"

#include <algorithm>

#include "switchyard/core/shard.h"

namespace switchyard {
namespace {

std::string text(const std::string& v) { return v; }
std::string text(std::int64_t v) { return cat(v); }
std::string text(float v) { return cat(v); }
std::string text(bool v) { return v ? "true" : "false"; }
std::string text(const Activation& v) { return describe(v); }
template <class E>
requires std::is_enum_v<E> std::string text(E v) { return std::string(to_string(v)); }

class Completer {
 public:
  Completer(const ProblemSketch& sketch, const Deployment& deployment)
      : sketch_(sketch), deployment_(deployment) {}

  CompletedProblem run() {
    widths_and_kind();
    routing();
    shared();
    out_.problem.check();
    return std::move(out_);
  }

 private:
  template <class T>
  T take(const char* field, const std::optional<T>& stated, T otherwise) {
    if (!stated) out_.assumed.push_back({field, text(otherwise)});
    return stated.value_or(otherwise);
  }

  void widths_and_kind() {
    Problem& p = out_.problem;
    p.format = fold_format(take<std::string>("format", sketch_.format, "none"));
    p.dtype = take("dtype", sketch_.dtype, Dtype::kBf16);
    p.activations = take("activations", sketch_.activations, ActivationMode::kFormat);
    p.hidden = take<std::int64_t>("hidden", sketch_.hidden, 2048);
    p.latent = take<std::int64_t>("latent", sketch_.latent, 0);
    std::int64_t filled = std::min(kMaxWidth, deployment_.tp * kShardMultiple);
    p.inter = take("inter", sketch_.inter, std::max<std::int64_t>(768, filled));
    p.expert_bias = take("expert_bias", sketch_.expert_bias, false);
    p.activation = take<Activation>("activation", sketch_.activation, Swiglu{});
  }

  void routing() {
    RoutingMethodType method = take("routing", sketch_.routing, RoutingMethodType::kRenormalize);
    std::int64_t experts = take("num_experts", sketch_.num_experts, assumed_experts());
    std::int64_t top_k = take("top_k", sketch_.top_k, assumed_top_k(method, experts));
    out_.problem.routing = make_routing(method, experts, top_k);
    out_.problem.routed_scaling_factor =
        take("routed_scaling_factor", sketch_.routed_scaling_factor, 1.0f);
  }

  std::int64_t assumed_experts() const {
    if (deployment_.slots > 0) return std::min(deployment_.slots, kMaxRoutedExperts);
    std::int64_t least = std::max(deployment_.ep, sketch_.top_k.value_or(1));
    return std::min(std::max<std::int64_t>(128, least), kMaxRoutedExperts);
  }

  static std::int64_t assumed_top_k(RoutingMethodType method, std::int64_t experts) {
    std::int64_t usual = method == RoutingMethodType::kLlama4        ? 1
                         : method == RoutingMethodType::kSparseMixer ? 2
                                                                     : 8;
    return std::clamp<std::int64_t>(experts, 1, usual);
  }

  void shared() {
    Problem& p = out_.problem;
    bool known_width = sketch_.shared_inter.value_or(0) > 0;
    p.num_shared = take<std::int64_t>("num_shared", sketch_.num_shared, known_width ? 1 : 0);
    // Bounded like the checks that follow, so that a value out of range cannot overflow here first.
    std::int64_t joint = std::min(p.num_shared, kMaxRoutedExperts) * std::min(p.inter, kMaxWidth);
    p.shared_inter = take("shared_inter", sketch_.shared_inter, joint);
    p.shared_gate = take("shared_gate", sketch_.shared_gate, false);
    p.combine = take("combine", sketch_.combine, CombinePrecision::kBf16);
  }

  const ProblemSketch& sketch_;
  const Deployment& deployment_;
  CompletedProblem out_;
};

}  // namespace

CompletedProblem complete(const ProblemSketch& sketch, const Deployment& deployment) {
  deployment.check();
  return Completer(sketch, deployment).run();
}

}  // namespace switchyard
