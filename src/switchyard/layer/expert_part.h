// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/core/shard.h"

namespace switchyard::layer {

/// The columns of the expert width that one rank holds of every expert: rows of gate and up with
/// their biases, columns of down.
struct ExpertPart {
  std::int64_t inter = 0;  // of the whole expert
  Shard columns;           // begin is 0 where size is 0
  bool down_bias = true;   // a bias of the ranks' sum belongs to one of its terms

  /// What rank `tp.rank` of `tp.size` holds of experts `inter` wide; FC2's bias goes to the first.
  static ExpertPart of(std::int64_t inter, const Member& tp);
  bool whole() const { return columns.size == inter; }
};

/// The part of one canonical expert; `e` itself where the part is whole. Static scales, global
/// scales and the grid of block scales stay those of the whole expert.
///
/// Errors:  UsageError when a projection or bias is not part.inter wide, or for 4-bit columns that
///          are cut inside a byte.
checkpoint::ExpertWeights slice_expert(const checkpoint::ExpertWeights& e, const ExpertPart& part);

/// `source` with every expert cut to `part`.
checkpoint::ExpertSource with_part(checkpoint::ExpertSource source, const ExpertPart& part);

}  // namespace switchyard::layer
