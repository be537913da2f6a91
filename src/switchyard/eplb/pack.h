// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard::eplb {

/// Shares `slots` among experts so that the largest load per replica is smallest, no expert having
/// more than `most`; ties go to the expert with fewer, then to the lower id.
/// Shapes:  loads and result [experts]; experts <= slots <= experts · most, the caller's care.
std::vector<std::int32_t> replicate(std::span<const double> loads, std::int64_t slots,
                                    std::int64_t most);

/// Items in bins; every bin holds the same number of different items.
using Bins = std::vector<std::vector<std::int32_t>>;

/// Deals `counts[i]` copies of each item i, of `weights[i]` each, to `num_bins` bins so that the
/// heaviest bin is light: heaviest first into the lightest bin, then swaps as long as they help.
/// Shapes:  weights, counts [items]; the counts are at most num_bins and add up to a multiple of
/// it.
Bins pack(std::span<const double> weights, std::span<const std::int32_t> counts,
          std::int64_t num_bins);

}  // namespace switchyard::eplb
