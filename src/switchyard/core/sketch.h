// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "switchyard/core/deployment.h"
#include "switchyard/core/problem.h"

namespace switchyard {

/// A layer as far as a caller knows it; complete() fills in the rest.
struct ProblemSketch {
  std::optional<std::string> format{};  // any alias
  std::optional<Dtype> dtype{};
  std::optional<ActivationMode> activations{};
  std::optional<std::int64_t> hidden{};
  std::optional<std::int64_t> latent{};
  std::optional<std::int64_t> inter{};
  std::optional<bool> expert_bias{};
  std::optional<Activation> activation{};
  std::optional<RoutingMethodType> routing{};
  std::optional<std::int64_t> num_experts{};
  std::optional<std::int64_t> top_k{};
  std::optional<float> routed_scaling_factor{};
  std::optional<std::int64_t> num_shared{};
  std::optional<std::int64_t> shared_inter{};
  std::optional<bool> shared_gate{};
  std::optional<CombinePrecision> combine{};

  bool operator==(const ProblemSketch&) const = default;
};

/// A field that nobody stated, and the value that stands in for it.
struct Assumption {
  std::string field;
  std::string value;
  bool operator==(const Assumption&) const = default;
};

/// A complete problem, and what of it was assumed, in the order of Problem's fields.
struct CompletedProblem {
  Problem problem;
  std::vector<Assumption> assumed;
};

/// Completes `sketch` so that no value assumed is itself a reason for a gate to refuse under
/// `deployment`: widths fill every TP shard, experts fill every EP rank and fit the slots.
/// Errors: UsageError when the stated values contradict each other or are out of range.
CompletedProblem complete(const ProblemSketch& sketch, const Deployment& deployment);

}  // namespace switchyard
