// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/search.h"

#include <algorithm>
#include <utility>

#include "switchyard/eplb/placement.h"
#include "switchyard/eplb/rearrange.h"

namespace switchyard::eplb {
namespace {

using Counts = std::vector<std::int32_t>;

constexpr double kGoodBalance = 1 + 1e-3;  // what is that close to even is not worth a search
constexpr int kMaxRounds = 8;
constexpr std::size_t kTakers = 2, kGivers = 8;  // candidates of one round

Counts flat(const Bins& bins) {
  Counts out;
  for (const auto& bin : bins) out.insert(out.end(), bin.begin(), bin.end());
  return out;
}

/// A share of the replicas with its packing.
class Search {
 public:
  Search(std::span<const double> loads, std::int64_t slots, std::int64_t ranks)
      : loads_(loads), ranks_(ranks), counts_(replicate(loads, slots, ranks)) {
    bins_ = packed(counts_);
    balance_ = balance_of(bins_);
  }

  /// Gives an expert of the heaviest rank a replica of another expert's, and packs anew.
  bool shift_replica() {
    for (std::int32_t taker : takers())
      for (std::int32_t giver : givers()) {
        if (giver == taker) continue;
        Counts counts = counts_;
        ++counts[std::size_t(taker)];
        --counts[std::size_t(giver)];
        Bins bins = packed(counts);
        const double balance = balance_of(bins);
        if (balance >= balance_ * (1 - 1e-6)) continue;
        counts_ = std::move(counts), bins_ = std::move(bins), balance_ = balance;
        return true;
      }
    return false;
  }

  bool is_good() const { return balance_ <= kGoodBalance; }
  Bins take() { return std::move(bins_); }

 private:
  Bins packed(const Counts& counts) const {
    std::vector<double> weights(loads_.begin(), loads_.end());
    for (std::size_t e = 0; e < weights.size(); ++e) weights[e] /= counts[e];
    return pack(weights, counts, ranks_);
  }

  double balance_of(const Bins& bins) const { return max_over_mean(loads_, flat(bins), ranks_); }

  double weight(std::int32_t e) const { return loads_[std::size_t(e)] / counts_[std::size_t(e)]; }

  double load_of(const Counts& bin) const {
    double sum = 0;
    for (std::int32_t e : bin) sum += weight(e);
    return sum;
  }

  /// The heaviest replicas of the heaviest rank whose experts may have more.
  Counts takers() const {
    Counts out = *std::max_element(bins_.begin(), bins_.end(), [&](const auto& a, const auto& b) {
      return load_of(a) < load_of(b);
    });
    std::erase_if(out, [&](std::int32_t e) { return counts_[std::size_t(e)] >= ranks_; });
    std::sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) {
      return std::pair(-weight(a), a) < std::pair(-weight(b), b);
    });
    out.resize(std::min(out.size(), kTakers));
    return out;
  }

  /// The experts with most replicas: one fewer makes theirs the least heavier.
  Counts givers() const {
    Counts out;
    for (std::int32_t e = 0; e < std::int32_t(counts_.size()); ++e)
      if (counts_[std::size_t(e)] > 1) out.push_back(e);
    std::stable_sort(out.begin(), out.end(), [&](std::int32_t a, std::int32_t b) {
      return counts_[std::size_t(a)] > counts_[std::size_t(b)];
    });
    out.resize(std::min(out.size(), kGivers));
    return out;
  }

  std::span<const double> loads_;
  std::int64_t ranks_;
  Counts counts_;
  Bins bins_;
  double balance_ = 1;
};

}  // namespace

Bins place_replicas(std::span<const double> loads, std::int64_t slots, std::int64_t ranks) {
  Search search(loads, slots, ranks);
  for (int round = 0; round < kMaxRounds && !search.is_good(); ++round)
    if (!search.shift_replica()) break;
  const bool good = search.is_good();
  Bins bins = search.take();
  if (good) return bins;
  const Counts slots_now = flat(bins);
  const Counts stepped = improve({.loads = loads,
                                  .before = slots_now,
                                  .num_ranks = ranks,
                                  .num_nodes = 1,
                                  .node_of_expert = {},
                                  .goal = kGoodBalance,
                                  .most_moves = 4 * slots});
  auto slot = stepped.begin();
  for (auto& bin : bins)
    for (std::int32_t& e : bin) e = *slot++;
  return bins;
}

}  // namespace switchyard::eplb
