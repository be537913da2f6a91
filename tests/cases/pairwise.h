// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace switchyard::test {

/// Rows of level numbers in which any two levels of two factors meet at least once: the subset of a
/// matrix that a change must pass. Always the same for the same numbers of levels.
///
/// Shapes:  levels[f] > 0: how many levels factor f has; each row has one level per factor.
std::vector<std::vector<int>> pairwise(std::span<const int> levels);
/// All combinations.
std::vector<std::vector<int>> all_combinations(std::span<const int> levels);

}  // namespace switchyard::test
