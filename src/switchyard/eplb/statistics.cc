// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/statistics.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/core/routing.h"

namespace switchyard::eplb {
namespace {

constexpr std::int64_t kMaxWindow = 1 << 16;
constexpr std::int64_t kMaxCounters = std::int64_t(1) << 31;

void require_in(std::string_view what, std::int64_t value, std::int64_t most) {
  require(value >= 1 && value <= most, "load statistics: ", what, " = ", value, ", must be 1 to ",
          most);
}

}  // namespace

LoadStatistics::LoadStatistics(std::int64_t num_layers, std::int64_t num_experts,
                               std::int64_t window)
    : num_layers_(num_layers), num_experts_(num_experts), window_(window) {
  require_in("layers", num_layers, kMaxLayers);
  require_in("experts", num_experts, kMaxRoutedExperts);
  require_in("window", window, kMaxWindow);
  const std::int64_t per_iteration = num_layers * num_experts;
  require(per_iteration * (window + 1) <= kMaxCounters, "load statistics: ", window,
          " iterations of ", num_layers, " layers and ", num_experts, " experts are more than ",
          kMaxCounters, " counters; take a shorter window and add up outside");
  ring_.assign(std::size_t(per_iteration * (window + 1)), 0);
  sums_.assign(std::size_t(per_iteration), 0);
}

std::span<std::int64_t> LoadStatistics::cell(std::int64_t iteration, std::int64_t layer) {
  const std::int64_t first = (iteration * num_layers_ + layer) * num_experts_;
  return std::span(ring_).subspan(std::size_t(first), std::size_t(num_experts_));
}

void LoadStatistics::check_layer(std::int64_t layer) const {
  require(layer >= 0 && layer < num_layers_, "load statistics: layer ", layer,
          " does not exist; the layers are 0 to ", num_layers_ - 1);
}

void LoadStatistics::record(std::int64_t layer, std::span<const std::int32_t> expert_ids) {
  check_layer(layer);
  for (std::int32_t id : expert_ids)
    require(id < num_experts_, "load statistics: expert id ", id,
            " does not exist; give logical experts 0 to ", num_experts_ - 1, ", not slots");
  auto counts = cell(open_, layer);
  for (std::int32_t id : expert_ids)
    if (id >= 0) ++counts[std::size_t(id)];
}

void LoadStatistics::add(std::int64_t layer, std::span<const std::int64_t> counts) {
  check_layer(layer);
  require(std::int64_t(counts.size()) == num_experts_, "load statistics: ", counts.size(),
          " counts are given for ", num_experts_, " experts; give one each");
  const std::int64_t most = std::int64_t(kMaxLoad) / window_;
  for (std::size_t e = 0; e < counts.size(); ++e)
    require(counts[e] >= 0 && counts[e] <= most, "load statistics: expert ", e, " has count ",
            counts[e], ", must be 0 to ", most, " in an iteration; the window of ", window_,
            " must not sum up to more than ", kMaxLoad);
  auto sum = cell(open_, layer);
  for (std::size_t e = 0; e < counts.size(); ++e)
    require(sum[e] <= most - counts[e], "load statistics: expert ", e, " has counted ", sum[e],
            " and gets ", counts[e], ", together more than ", most, " in an iteration; close it");
  for (std::size_t e = 0; e < counts.size(); ++e) sum[e] += counts[e];
}

void LoadStatistics::end_iteration() {
  const std::size_t size = sums_.size();
  auto at = [&](std::int64_t i) { return std::span(ring_).subspan(std::size_t(i) * size, size); };
  auto closing = at(open_);
  for (std::size_t i = 0; i < size; ++i) sums_[i] += closing[i];
  open_ = (open_ + 1) % (window_ + 1);
  auto oldest = at(open_);  // all zeros until the ring has gone round
  for (std::size_t i = 0; i < size; ++i) sums_[i] -= oldest[i];
  std::fill(oldest.begin(), oldest.end(), 0);
  closed_ = std::min(closed_ + 1, window_);
}

LoadTable LoadStatistics::loads() const {
  LoadTable out;
  for (std::int64_t l = 0; l < num_layers_; ++l) {
    auto first = sums_.begin() + std::ptrdiff_t(l * num_experts_);
    out.layers.emplace_back(first, first + std::ptrdiff_t(num_experts_));
  }
  return out;
}

}  // namespace switchyard::eplb
