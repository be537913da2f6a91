// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "switchyard/ops/activation/activation.h"

namespace switchyard::test {

/// Experts of every activation case; their constants differ where the kind has any.
inline constexpr std::int64_t kActivationExperts = 3;

/// A kind and the bound that its twins keep against the oracle, relative to the element.
struct ActivationKind {
  Activation activation;
  double bound;  // counted roundings, doubled
  bool per_expert = false;
};

/// Every kind, with and without constants.
extern const std::vector<ActivationKind> kActivationKinds;
/// [rows, inter]: none, one, ragged, a vector block and its neighbours, real.
extern const std::vector<std::pair<std::int64_t, std::int64_t>> kActivationShapes;

/// Inputs with distinct values, strided and padded with NaN; every row names an expert or -1.
struct ActivationCase {
  ActivationCase(const Activation& activation, std::int64_t rows, std::int64_t inter);

  /// Views of the case's own host memory.
  ops::ActivationArgs args();
  /// The constants that row `r` uses.
  const ActivationParams& params_of_row(std::int64_t r) const;
  /// What activation_ref() gives, dense [rows, inter].
  std::vector<float> oracle();
  /// `out` without its padding.
  std::vector<float> result() const;
  /// Fills `out`, padding included, with a value that no kind gives.
  void poison();
  /// True when no element between the rows was written.
  bool padding_is_intact() const;

  std::int64_t rows, inter, stride;
  std::vector<float> gate, up, out;
  std::vector<std::int32_t> expert_ids;
  std::vector<ActivationParams> params;
};

/// Largest |got - want| / |want|; infinite when sizes differ or a NaN stands on one side only.
double worst_error(const std::vector<float>& got, const std::vector<float>& want);

}  // namespace switchyard::test
