// SPDX-License-Identifier: Apache-2.0
#include "switchyard/eplb/rearrange.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace switchyard::eplb {
namespace {

using Slots = std::vector<std::int32_t>;

/// Experts of sorted lists that are in both.
std::int64_t shared(const Slots& a, const Slots& b) {
  std::int64_t count = 0;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (*x == *y)
      ++count, ++x, ++y;
    else if (*x < *y)
      ++x;
    else
      ++y;
  }
  return count;
}

/// Gives each of `from` one of `to`, the pairs that share most first; result[i] is from i's.
std::vector<std::size_t> match(std::span<const Slots> from, std::span<const Slots> to) {
  std::vector<std::tuple<std::int64_t, std::size_t, std::size_t>> pairs;  // -shared, from, to
  for (std::size_t i = 0; i < from.size(); ++i)
    for (std::size_t j = 0; j < to.size(); ++j) pairs.emplace_back(-shared(from[i], to[j]), i, j);
  std::sort(pairs.begin(), pairs.end());
  std::vector<std::size_t> out(from.size(), to.size());
  std::vector<bool> taken(to.size(), false);
  for (auto [overlap, i, j] : pairs) {
    if (out[i] != to.size() || taken[j]) continue;
    out[i] = j;
    taken[j] = true;
  }
  return out;
}

/// Each list of `lists` joined with its neighbours to `parts` lists, sorted.
std::vector<Slots> joined(std::span<const Slots> lists, std::size_t parts) {
  std::vector<Slots> out(parts);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    Slots& part = out[i * parts / lists.size()];
    part.insert(part.end(), lists[i].begin(), lists[i].end());
  }
  for (Slots& part : out) std::sort(part.begin(), part.end());
  return out;
}

/// Writes the experts of `bin` over a rank's slots; those that stand there already stay.
void settle(const Slots& bin, std::span<std::int32_t> slots) {
  Slots arriving;
  for (std::int32_t e : bin)
    if (std::find(slots.begin(), slots.end(), e) == slots.end()) arriving.push_back(e);
  auto next = arriving.begin();
  for (std::int32_t& slot : slots)
    if (std::find(bin.begin(), bin.end(), slot) == bin.end()) slot = *next++;
}

}  // namespace

std::vector<std::int32_t> rearrange(const Bins& bins, std::span<const std::int32_t> before,
                                    std::int64_t num_nodes) {
  const std::size_t nodes = std::size_t(num_nodes), ranks = bins.size() / nodes;
  const std::size_t per_rank = bins.front().size();
  std::vector<Slots> old;
  for (std::size_t r = 0; r < bins.size(); ++r)
    old.emplace_back(before.begin() + std::ptrdiff_t(r * per_rank),
                     before.begin() + std::ptrdiff_t((r + 1) * per_rank));
  std::vector<Slots> new_ranks = joined(bins, bins.size()), old_ranks = joined(old, old.size());
  auto node_to = match(joined(bins, nodes), joined(old, nodes));
  Slots out(before.begin(), before.end());
  for (std::size_t n = 0; n < nodes; ++n) {
    const std::size_t base = node_to[n] * ranks;
    auto rank_to = match(std::span(new_ranks).subspan(n * ranks, ranks),
                         std::span(old_ranks).subspan(base, ranks));
    for (std::size_t r = 0; r < ranks; ++r)
      settle(bins[n * ranks + r], std::span(out).subspan((base + rank_to[r]) * per_rank, per_rank));
  }
  return out;
}

}  // namespace switchyard::eplb
