// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard {

/// What the forwards of a layer asked of each expert since the layer was built or the counts taken.
///
/// Shapes:  choices [E+Z], by expert id, zero experts last; fused shared experts are no choices.
/// Units:   (token, choice) pairs; `skipped` counts those with id -1, so that the sum of all is
///          tokens * k. Only forwards that ended well count.
struct ExpertLoad {
  std::vector<std::int64_t> choices;
  std::int64_t skipped = 0;
  std::int64_t tokens = 0;
  std::int64_t forwards = 0;

  bool operator==(const ExpertLoad&) const = default;
};

}  // namespace switchyard
