// SPDX-License-Identifier: Apache-2.0
#include "tests/cases/rank_case.h"

#include <algorithm>

#include "switchyard/base/check.h"
#include "switchyard/comm/factory.h"
#include "switchyard/core/shard.h"
#include "switchyard/layer/latent.h"
#include "tests/cases/share_case.h"

namespace switchyard::test {
namespace {

PartOf part_of(const Mode& m, const Problem& p, int rank, int ranks) {
  PartOf out;
  if (m.tp < ranks) out.held = ep_shard(p.num_experts(), ranks / m.tp, rank / m.tp);
  out.tp = {rank % m.tp, m.tp};
  if (m.parallel != Parallel::kDep && p.latent == 0) out.shared_tp = {rank, ranks};
  return out;
}

}  // namespace

LeafCase mode_case(const leaves::Leaf& leaf, const Mode& m) {
  const bool dep = m.parallel == Parallel::kDep;
  LeafCase c = dep ? LeafCase{small_problem(leaf), {}, 9} : shared_case(leaf, 96);
  c.problem.routed_scaling_factor = dep ? 1.0F : 2.5F;
  return c;
}

layer::RankOptions rank_options(const layer::Layer& whole, const Mode& m) {
  layer::RankOptions o;
  o.layer = whole.options();
  o.layer.pool = std::make_shared<ThreadPool>(1);
  o.parallel = m.parallel;
  o.tp = m.tp;
  o.capacity = kRankCapacity;
  return o;
}

std::int64_t tokens_of(const Mode& m, int rank) {
  return m.own_tokens() ? (rank == 2 ? 0 : kRankTokens - rank) : kRankTokens;
}

std::uint64_t seed_of(const Mode& m, int rank) {
  return 30 + (m.own_tokens() ? std::uint64_t(rank) : 0);
}

Parts parts_of(const layer::Layer& whole, const Mode& m, int ranks) {
  Parts out;
  for (int r = 0; r < ranks; ++r)
    out.push_back(make_part(whole, part_of(m, whole.problem(), r, ranks)));
  return out;
}

std::vector<std::byte> expected_of_parts(const Parts& parts, comm::Wire wire, Call& call,
                                         int left_out) {
  const layer::Layer& any = *parts[0];
  const std::int64_t h = any.problem().expert_hidden();
  std::vector<float> sum(std::size_t(call.tokens * h)), shared;
  std::vector<std::byte> row(std::size_t(comm::wire_bytes(wire, h)) + 16), out(call.out.size());
  for (int r = 0; r < int(parts.size()); ++r) {
    if (r == left_out) continue;
    const Share share = share_of(*parts[std::size_t(r)], call);
    shared = share.shared;
    for (std::int64_t t = 0; t < call.tokens; ++t) {
      comm::encode_row(wire, share.out.data() + t * h, h, row.data());
      comm::add_row(wire, row.data(), 1, h, sum.data() + t * h);
    }
  }
  if (any.latent() == nullptr || call.tokens == 0) {
    for (std::size_t i = 0; i < sum.size(); ++i)
      store_element(any.options().dtype, out.data(), std::int64_t(i), sum[i]);
    return out;
  }
  ForwardArgs args = call.args();
  args.out = out.data();
  HostBuffer workspace(
      layer::latent_workspace_bytes(*any.latent(), call.tokens, any.options().pool->size()));
  project_up(any, args, sum.data(), shared.empty() ? nullptr : shared.data(), workspace.bytes());
  return out;
}

std::string mode_fault(comm::Group& g, const layer::Layer& whole, const Mode& m,
                       const Parts& parts) {
  layer::RankOptions o = rank_options(whole, m);
  Deployment d;
  d.parallel = m.parallel;
  d.tp = m.tp;
  d.ep = g.size() / m.tp;
  o.strategy = comm::choose(whole.problem(), d, "auto").strategy;
  if ((o.strategy != nullptr) != m.own_tokens()) return "auto chose the wrong kind of join";
  layer::RankLayer rank(g, with_declared_scales(whole), o);
  HostBuffer workspace(rank.workspace_bytes());
  Call call(whole, tokens_of(m, g.rank()), seed_of(m, g.rank()));
  const std::vector<std::byte> want = expected_of_parts(parts, comm::Wire::kBf16, call);
  ForwardArgs args = call.args();
  args.workspace = workspace.bytes();
  std::ranges::fill(workspace.bytes(), std::byte{0xc5});
  std::ranges::fill(call.out, std::byte{0xff});
  rank.forward(args);
  if (call.out != want) return cat(to_string(m.parallel), ": rank ", g.rank(), " differs");
  if (call.tokens > 0 && expected_of_parts(parts, comm::Wire::kBf16, call, 0) == want)
    return "the control: rank 0's share does not show";
  return "";
}

}  // namespace switchyard::test
