// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/pack.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

#include "switchyard/base/check.h"

namespace switchyard::eplb {
namespace {

/// Bins while they are filled and improved.
class Packer {
 public:
  Packer(std::span<const double> weights, std::int64_t num_bins, std::int64_t capacity)
      : weights_(weights),
        capacity_(std::size_t(capacity)),
        bins_(std::size_t(num_bins)),
        loads_(std::size_t(num_bins), 0.0),
        holds_(std::size_t(num_bins) * weights.size(), 0) {}

  /// Puts `item` into the lightest bin that has room and not this item already.
  void add(std::int32_t item) {
    std::size_t best = bins_.size();
    for (std::size_t b = 0; b < bins_.size(); ++b)
      if (has_room(b) && !holds(b, item) && (best == bins_.size() || is_lighter(b, best))) best = b;
    if (best < bins_.size()) return put(best, item);
    make_room(item);
  }

  /// Swaps between the heaviest bin and another one until no swap makes the heavier of both lighter
  /// than the heaviest was. Each swap lowers the list of sorted loads, so this ends.
  void refine() {
    const double mean = std::accumulate(loads_.begin(), loads_.end(), 0.0) / double(loads_.size());
    const std::size_t rounds = 16 * capacity_ * bins_.size();
    for (std::size_t i = 0; i < rounds; ++i) {
      std::size_t a = std::size_t(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
      if (loads_[a] <= mean * (1 + kEnough) || !swap_from(a)) return;
    }
  }

  Bins take() { return std::move(bins_); }

 private:
  static constexpr double kEnough = 1e-6;  // of the mean: what lies below is noise in any load

  bool has_room(std::size_t b) const { return bins_[b].size() < capacity_; }
  char& mark(std::size_t b, std::int32_t item) {
    return holds_[b * weights_.size() + std::size_t(item)];
  }
  bool holds(std::size_t b, std::int32_t item) const {
    return holds_[b * weights_.size() + std::size_t(item)] != 0;
  }
  bool is_lighter(std::size_t a, std::size_t b) const {
    return loads_[a] != loads_[b] ? loads_[a] < loads_[b] : bins_[a].size() < bins_[b].size();
  }
  double weight(std::int32_t item) const { return weights_[std::size_t(item)]; }

  void put(std::size_t b, std::int32_t item) {
    bins_[b].push_back(item);
    loads_[b] += weight(item);
    mark(b, item) = 1;
  }

  void replace(std::size_t b, std::size_t at, std::int32_t item) {
    mark(b, bins_[b][at]) = 0;
    loads_[b] += weight(item) - weight(bins_[b][at]);
    bins_[b][at] = item;
    mark(b, item) = 1;
  }

  /// Every bin with room holds `item`: moves another item from a full bin into one with room. One
  /// exists, since a full bin without `item` has more different items than a bin with room.
  void make_room(std::int32_t item) {
    std::size_t room = 0;
    while (!has_room(room)) ++room;
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      if (has_room(b) || holds(b, item)) continue;
      for (std::size_t at = 0; at < bins_[b].size(); ++at) {
        std::int32_t other = bins_[b][at];
        if (holds(room, other)) continue;
        replace(b, at, item);
        return put(room, other);
      }
    }
    ensure(false, "pack: an item has more copies than bins");
  }

  bool swap_from(std::size_t a) {
    const double heavy = loads_[a];
    double best = heavy * (1 - 1e-12);  // of rounding alone nothing gets better
    std::size_t best_b = a, best_x = 0, best_y = 0;
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      if (b == a || (heavy + loads_[b]) / 2 >= best) continue;
      for (std::size_t x = 0; x < bins_[a].size(); ++x) {
        const std::int32_t out = bins_[a][x];
        if (holds(b, out)) continue;
        const double w = weight(out);
        for (std::size_t y = 0; y < bins_[b].size(); ++y) {
          const double d = w - weight(bins_[b][y]);
          const double worse = std::max(heavy - d, loads_[b] + d);
          if (worse >= best || holds(a, bins_[b][y])) continue;
          best = worse, best_b = b, best_x = x, best_y = y;
        }
      }
    }
    if (best_b == a) return false;
    const std::int32_t out = bins_[a][best_x], in = bins_[best_b][best_y];
    replace(a, best_x, in);
    replace(best_b, best_y, out);
    return true;
  }

  std::span<const double> weights_;
  std::size_t capacity_;
  Bins bins_;
  std::vector<double> loads_;
  std::vector<char> holds_;  // [bin][item]
};

}  // namespace

std::vector<std::int32_t> replicate(std::span<const double> loads, std::int64_t slots,
                                    std::int64_t most) {
  using Entry = std::tuple<double, std::int32_t, std::int32_t>;  // load, -replicas, -expert
  std::vector<std::int32_t> counts(loads.size(), 1);
  std::priority_queue<Entry> heap;
  auto push = [&](std::size_t e) {
    if (counts[e] < most) heap.emplace(loads[e] / counts[e], -counts[e], -std::int32_t(e));
  };
  for (std::size_t e = 0; e < loads.size(); ++e) push(e);
  for (std::int64_t s = std::int64_t(loads.size()); s < slots; ++s) {
    ensure(!heap.empty(), "replicate: more slots than experts can have replicas");
    std::size_t e = std::size_t(-std::get<2>(heap.top()));
    heap.pop();
    ++counts[e];
    push(e);
  }
  return counts;
}

Bins pack(std::span<const double> weights, std::span<const std::int32_t> counts,
          std::int64_t num_bins) {
  std::int64_t copies = std::accumulate(counts.begin(), counts.end(), std::int64_t(0));
  ensure(copies % num_bins == 0, "pack: ", copies, " copies do not fill ", num_bins, " bins");
  std::vector<std::int32_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return weights[std::size_t(a)] > weights[std::size_t(b)];
  });
  Packer packer(weights, num_bins, copies / num_bins);
  for (std::int32_t item : order)
    for (std::int32_t c = 0; c < counts[std::size_t(item)]; ++c) packer.add(item);
  packer.refine();
  return packer.take();
}

}  // namespace switchyard::eplb
