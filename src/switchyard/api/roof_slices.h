// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "switchyard/api/bench.h"
#include "switchyard/api/bench_bars.h"
#include "switchyard/tune/roof.h"

namespace switchyard::api {

/// Parts of a row's calls with the mean of the roof sampled before and after each.
///
/// Shapes:  p50 [n], samples [n + 1]: sample i before part i, sample i + 1 behind it.
std::vector<RoofSlice> roof_slices(std::span<const tune::Roof> samples,
                                   std::span<const double> p50);

/// The median over the slices of the share of its roof that each reached.
double median_share(const LayerCost& cost, std::span<const RoofSlice> slices);

}  // namespace switchyard::api
