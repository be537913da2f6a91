// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/bench_bars.h"

#include <algorithm>
#include <array>

namespace switchyard {
namespace {

constexpr std::array<std::int64_t, 4> kTokens = {1, 8, 64, 512};

/// Shares of the roof at 1, 8, 64 and 512 tokens.
struct ShareBar {
  std::string_view preset, format;
  std::array<double, 4> share;
};

constexpr std::array<double, 4> kFp8 = {0.80, 0.70, 0.50, 0.55};
constexpr std::array<double, 4> kFourBit = {0.75, 0.55, 0.45, 0.55};

constexpr std::array<ShareBar, 8> kShareBars = {{
    {"qwen3-30b-a3b", "none", {0.85, 0.85, 0.60, 0.70}},
    {"qwen3-30b-a3b", "fp8", kFp8},
    {"qwen3-30b-a3b", "fp8_block_scales", kFp8},
    {"qwen3-30b-a3b", "nvfp4", kFourBit},
    {"qwen3-30b-a3b", "w4a16_mxfp4", kFourBit},
    {"qwen3-30b-a3b", "w4a8_mxfp4_mxfp8", kFourBit},
    {"qwen3-30b-a3b", "w4a8_mxfp4_fp8", kFourBit},
    {"qwen3-30b-a3b", "w4a8_nvfp4_fp8", kFourBit},
}};

/// Times of a peer on two cores of another machine, whose roof is kPeerRoof. Units: µs.
struct TimeBar {
  std::string_view preset, format;
  std::array<double, 4> us;
};

constexpr tune::Roof kPeerRoof{.gbps = 34, .gflops = 466};
constexpr std::array<TimeBar, 1> kTimeBars = {
    {{"gpt-oss-20b", "w4a16_mxfp4", {1900, 11000, 40000, 250000}}}};

}  // namespace

double floor_us(const LayerCost& cost, const tune::Roof& roof) {
  return std::max(cost.bytes / roof.gbps, cost.flops / roof.gflops) * 1e-3;
}

std::optional<double> bar_of(std::string_view preset, std::string_view format, std::int64_t tokens,
                             const LayerCost& cost) {
  const auto* at = std::find(kTokens.begin(), kTokens.end(), tokens);
  if (at == kTokens.end()) return std::nullopt;
  const std::size_t column = std::size_t(at - kTokens.begin());
  for (const ShareBar& bar : kShareBars)
    if (bar.preset == preset && bar.format == format) return bar.share[column];
  for (const TimeBar& bar : kTimeBars)
    if (bar.preset == preset && bar.format == format)
      return floor_us(cost, kPeerRoof) / bar.us[column];
  return std::nullopt;
}

}  // namespace switchyard
