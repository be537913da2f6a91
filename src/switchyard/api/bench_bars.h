// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/tune/roof.h"

namespace switchyard {

/// What one call moves and computes, by the counting rule of all our figures.
struct LayerCost {
  double bytes = 0;  // stored bytes of the distinct experts touched, scales included
  double flops = 0;
};

/// The least time that a machine of this roof could take: the larger of both parts. Units: µs.
double floor_us(const LayerCost& cost, const tune::Roof& roof);

/// The speed that we hold a published shape to, as a share of the roof that its fresh p50 must
/// reach; empty where none is set.
///
/// A bar that was set in milliseconds on another machine is carried over by its share of that
/// machine's roof for the same cost. Bars stand for uniform routing and the format's own
/// activations.
std::optional<double> bar_of(std::string_view preset, std::string_view format, std::int64_t tokens,
                             const LayerCost& cost);

}  // namespace switchyard
