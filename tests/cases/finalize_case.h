// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/layer/fused_end.h"
#include "switchyard/layer/layer.h"
#include "tests/cases/share_case.h"

namespace switchyard::test {

/// `x` rounded once to `t`.
float rounded_to(Dtype t, float x);

/// What a layer ends in: a seeded residual and gamma, the same on all ranks, and poisoned outputs.
///
/// Shapes:  residual, residual_out, norm_out [tokens, hidden], gamma [hidden].
struct Behind {
  static constexpr float kEps = 1e-5F, kWeightBias = 1;

  Behind(Dtype t, std::int64_t tokens, std::int64_t hidden);
  /// As a forward takes it.
  BehindLayer args();

  std::vector<std::byte> residual, gamma, residual_out, norm_out;
};

/// The contract reference of a layer whose ranks hold the same tokens: plain loops in fp32 over the
/// ranks' own rows, weights and shared shards. `left_out` is a rank that is forgotten: a control.
struct EndOf {
  const std::vector<std::unique_ptr<layer::Layer>>& parts;
  const std::vector<Share>& shares;  // of each rank
  Ending ending = Ending::kPlain;
  const Call& call;
  int left_out = -1;

  /// The sum of the ranks' contributions, each rounded once to the dtype.
  std::vector<float> sums() const;
  /// The same, rounded: what a forward writes that has nothing behind it.
  std::vector<std::byte> output() const;
  /// Writes residual and norm behind the sums.
  void write(Behind& behind) const;

 private:
  float contribution(int rank, std::int64_t token, std::int64_t h) const;
};

}  // namespace switchyard::test
