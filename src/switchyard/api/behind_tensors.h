// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/comm/group.h"
#include "switchyard/layer/fused_end.h"

namespace switchyard {

/// Seeded residual and gamma behind a layer, the same on all ranks, and what is written there.
class BehindTensors {
 public:
  /// For `tokens` rows; values are a pure function of the seed.
  BehindTensors(std::int64_t hidden, Dtype dtype, std::int64_t tokens, std::uint64_t seed);

  /// The tensors as a forward takes them; the outputs are poisoned.
  BehindLayer args();
  /// Poisons the outputs alone.
  void poison();
  /// The inputs, for a copy elsewhere.
  const std::vector<std::byte>& residual() const { return residual_; }
  /// As residual().
  const std::vector<std::byte>& gamma() const { return gamma_; }
  /// Where the copy's outputs come back to.
  std::vector<std::byte>& residual_out() { return residual_out_; }
  /// As residual_out().
  std::vector<std::byte>& norm_out() { return norm_out_; }
  /// How far the written residual is from `sum` + the given one, or the norm from that of the
  /// written residual, in double: the larger. Shapes: sum [tokens, H] of the dtype.
  double rel_l2(const std::vector<std::byte>& sum) const;
  /// Whether all ranks wrote the same bits. Collective.
  bool same_on_all(comm::Group& group) const;

 private:
  std::int64_t hidden_, tokens_;
  Dtype dtype_;
  std::vector<std::byte> residual_, gamma_, residual_out_, norm_out_;
};

}  // namespace switchyard
