// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/migration.h"

#include <algorithm>
#include <map>
#include <set>

#include "switchyard/base/check.h"

namespace switchyard::eplb {
namespace {

/// Finds sources, and spreads them over the ranks that could be asked.
class Sources {
 public:
  Sources(std::span<const std::int32_t> before, std::int64_t num_ranks)
      : per_rank_(std::int64_t(before.size()) / num_ranks), asked_(std::size_t(num_ranks), 0) {
    for (std::size_t s = 0; s < before.size(); ++s) holders_[before[s]].push_back(std::int64_t(s));
  }

  std::int64_t take(std::int64_t slot, std::int32_t expert) {
    const auto found = holders_.find(expert);
    require(found != holders_.end(), "migration: slot ", slot, " is to hold expert ", expert,
            ", which no slot holds now; every expert needs a slot in both placements");
    const std::int64_t rank = slot / per_rank_;
    const auto better = [&](std::int64_t a, std::int64_t b) {
      return cost(a, rank) < cost(b, rank);
    };
    const std::int64_t from = *std::min_element(found->second.begin(), found->second.end(), better);
    if (from / per_rank_ != rank) ++asked_[std::size_t(from / per_rank_)];
    return from;
  }

 private:
  std::int64_t cost(std::int64_t from, std::int64_t rank) const {
    return from / per_rank_ == rank ? -1 : asked_[std::size_t(from / per_rank_)];
  }

  std::int64_t per_rank_;
  std::vector<std::int64_t> asked_;  // [ranks] slots that others take from it
  std::map<std::int32_t, std::vector<std::int64_t>> holders_;
};

}  // namespace

std::vector<Move> plan_moves(std::span<const std::int32_t> before,
                             std::span<const std::int32_t> after, std::int64_t num_ranks) {
  require(before.size() == after.size(), "migration: ", before.size(), " slots are to become ",
          after.size(), "; a layer keeps its number of slots");
  require(num_ranks >= 1 && std::int64_t(before.size()) % num_ranks == 0,
          "migration: ranks = ", num_ranks, " do not divide slots = ", before.size());
  Sources sources(before, num_ranks);
  std::vector<Move> out;
  for (std::size_t s = 0; s < after.size(); ++s)
    if (after[s] != before[s])
      out.push_back({std::int64_t(s), sources.take(std::int64_t(s), after[s]), after[s]});
  return out;
}

std::vector<std::vector<Move>> in_rounds(std::span<const Move> moves, std::int64_t slots_per_rank) {
  std::map<std::int64_t, std::set<std::int64_t>> shown;  // rank -> its slots that are wanted
  for (const Move& m : moves) shown[m.from / slots_per_rank].insert(m.from);
  std::vector<std::vector<Move>> out;
  for (const Move& m : moves) {
    const std::set<std::int64_t>& mine = shown[m.from / slots_per_rank];
    const auto round = std::size_t(std::distance(mine.begin(), mine.find(m.from)));
    out.resize(std::max(out.size(), round + 1));
    out[round].push_back(m);
  }
  return out;
}

}  // namespace switchyard::eplb
