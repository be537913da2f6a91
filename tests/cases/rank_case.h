// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/layer/rank_layer.h"
#include "tests/cases/leaf_case.h"

namespace switchyard::test {

inline constexpr std::int64_t kRankCapacity = 8, kRankTokens = 6;

/// How a layer is spread over ranks.
struct Mode {
  Parallel parallel;
  std::int64_t tp;
  bool own_tokens() const { return parallel == Parallel::kDep || parallel == Parallel::kDtp; }
  /// The same with tp = ranks where experts are cut (kFourModes leaves it open).
  Mode on(int ranks) const { return {parallel, tp == 0 ? ranks : tp}; }
};
/// Every mode once; tp 0 stands for all ranks.
inline constexpr Mode kFourModes[] = {
    {Parallel::kDep, 1}, {Parallel::kDtp, 0}, {Parallel::kTep, 1}, {Parallel::kTtp, 0}};

/// A shared expert and a factor, where the ranks' shares hold them.
LeafCase mode_case(const leaves::Leaf& leaf, const Mode& m);
/// One thread, kRankCapacity tokens, and under attention DP the strategy that auto chooses.
layer::RankOptions rank_options(const layer::Layer& whole, const Mode& m);

/// Tokens of a rank, and what they are made from: unlike where each has its own.
std::int64_t tokens_of(const Mode& m, int rank);
std::uint64_t seed_of(const Mode& m, int rank);

/// Each rank's part, to make the reference from.
using Parts = std::vector<std::unique_ptr<layer::Layer>>;
Parts parts_of(const layer::Layer& whole, const Mode& m, int ranks);

/// The contract reference: every rank's share rounded once to the wire, added in rank order in
/// fp32, rounded once. Shares of a latent layer end in front of norm, up-projection and the whole
/// shared expert. `left_out` is a rank whose share is forgotten: a control.
std::vector<std::byte> expected_of_parts(const Parts& parts, comm::Wire wire, Call& call,
                                         int left_out = -1);

/// One rank's forward under auto against the reference; what is wrong, or nothing. Collective.
std::string mode_fault(comm::Group& group, const layer::Layer& whole, const Mode& m,
                       const Parts& parts);

}  // namespace switchyard::test
