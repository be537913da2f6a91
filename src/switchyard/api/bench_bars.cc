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

/// Times on one H200 without shared experts at 1, 8, 64, 512, 4096 and 8192 tokens; the last is
/// a rate. Units: µs, TFLOP/s.
struct DeviceBar {
  std::string_view preset, format;
  std::array<double, 5> us;
  double tflops;
};

constexpr std::array<std::int64_t, 6> kDeviceTokens = {1, 8, 64, 512, 4096, 8192};
constexpr std::array<DeviceBar, 5> kDeviceBars = {{
    {"qwen3-30b-a3b", "none", {40, 165, 340, 380, 680}, 480},
    {"qwen3-30b-a3b", "fp8_block_scales", {32, 95, 200, 230, 480}, 650},
    {"gpt-oss-120b", "w4a16_mxfp4", {36, 150, 560, 700, 1900}, 420},
    {"deepseek-v3", "fp8_block_scales", {130, 800, 2900, 3300, 4600}, 800},
    {"deepseek-v3", "nvfp4", {90, 520, 1900, 2500, 6200}, 420},
}};

template <std::size_t n>
std::optional<std::size_t> column_of(const std::array<std::int64_t, n>& all, std::int64_t tokens) {
  const auto* at = std::find(all.begin(), all.end(), tokens);
  if (at == all.end()) return std::nullopt;
  return std::size_t(at - all.begin());
}

std::optional<double> cpu_bar(const Barred& what, std::int64_t tokens, const LayerCost& cost) {
  const std::optional<std::size_t> column = column_of(kTokens, tokens);
  if (!column || !what.overrides.empty()) return std::nullopt;
  if (what.tier == CpuIsa::kAmx && tokens == kTokens.back()) return std::nullopt;
  for (const ShareBar& bar : kShareBars)
    if (bar.preset == what.preset && bar.format == what.format) return bar.share[*column];
  for (const TimeBar& bar : kTimeBars)
    if (bar.preset == what.preset && bar.format == what.format)
      return floor_us(cost, kPeerRoof) / bar.us[*column];
  return std::nullopt;
}

std::optional<double> cuda_bar(const Barred& what, std::int64_t tokens, const LayerCost& cost,
                               const tune::Roof& roof) {
  const std::optional<std::size_t> column = column_of(kDeviceTokens, tokens);
  const bool has_shared = what.preset == "deepseek-v3";
  const bool alone = what.overrides == std::vector<std::string>{"without shared"};
  if (!column || !(has_shared ? alone : what.overrides.empty())) return std::nullopt;
  for (const DeviceBar& bar : kDeviceBars)
    if (bar.preset == what.preset && bar.format == what.format)
      return floor_us(cost, roof) /
             (*column < bar.us.size() ? bar.us[*column] : cost.flops / bar.tflops * 1e-6);
  return std::nullopt;
}

}  // namespace

double floor_us(const LayerCost& cost, const tune::Roof& roof) {
  return std::max(cost.bytes / roof.gbps, cost.flops / roof.gflops) * 1e-3;
}

std::optional<double> bar_of(const Barred& what, std::int64_t tokens, const LayerCost& cost,
                             const tune::Roof& roof) {
  return what.device == Device::kCpu ? cpu_bar(what, tokens, cost)
                                     : cuda_bar(what, tokens, cost, roof);
}

}  // namespace switchyard
