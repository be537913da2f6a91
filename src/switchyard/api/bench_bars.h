// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/base/device.h"
#include "switchyard/core/environment.h"
#include "switchyard/tune/roof.h"

namespace switchyard {

/// What one call moves and computes, by the counting rule of all our figures.
struct LayerCost {
  double bytes = 0;  // stored bytes of the distinct experts touched, scales included
  double flops = 0;
};

/// The least time that a machine of this roof could take: the larger of both parts. Units: µs.
double floor_us(const LayerCost& cost, const tune::Roof& roof);

/// A layer that may have a bar; overrides as BenchLayerRow has them.
struct Barred {
  Device device = Device::kCpu;
  std::string_view preset, format;
  const std::vector<std::string>& overrides;
  CpuIsa tier = CpuIsa::kAvx512;  // that the CPU ran
};

/// The speed that we hold a published shape to, as a share of the roof that its fresh p50 must
/// reach; empty where none is set.
///
/// A bar that was set in milliseconds on another machine is carried over by its share of that
/// machine's roof for the same cost; one of cuda is a time on an H200, and the share that of
/// `roof`. Bars stand for uniform routing, the format's own activations and a layer as published;
/// on cuda for a layer without its shared experts. Those of the CPU are shares of the rate of bf16
/// pairs, so 512 tokens have none on AMX, whose roof counts tile products: there the AVX-512 twin's
/// time is to be kAmxSpeedup of the AMX twin's.
std::optional<double> bar_of(const Barred& what, std::int64_t tokens, const LayerCost& cost,
                             const tune::Roof& roof);

/// Between the results of the two tiers at 512 tokens, at least.
inline constexpr double kAmxSpeedup = 3;

}  // namespace switchyard
