// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/strategy.h"

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

template <class... Args>
Eligibility no(Reject reason, const Args&... parts) {
  return Eligibility::no(reason, cat(parts...));
}

}  // namespace

Eligibility require_dispatch(const Deployment& d, bool serves_dtp) {
  if (d.ranks() == 1)
    return no(Reject::kTopologyUnsupported, "ranks = 1, an exchange joins two or more");
  if (d.attention_dp() && d.device == Device::kCuda) return require_cpu_ranks(d);
  if (d.parallel == Parallel::kDep || (serves_dtp && d.parallel == Parallel::kDtp))
    return Eligibility::yes();
  return no(Reject::kTopologyUnsupported, "parallel is ", to_string(d.parallel), ", which ",
            d.attention_dp() ? "gathers all tokens; all_gather serves it"
                             : "ends in an all-reduce and exchanges no tokens; pin no strategy, "
                               "or ask for parallel dep");
}

Eligibility require_no_tp(const Deployment& d) {
  if (d.tp == 1) return Eligibility::yes();
  return no(Reject::kTopologyUnsupported, "ep = ", d.ep, " and tp = ", d.tp,
            d.ep > 1 ? " are both above 1" : ": experts are cut", "; all_gather serves that");
}

Eligibility require_ranks(const Deployment& d) {
  if (d.ranks() <= kMaxGroupRanks) return Eligibility::yes();
  return no(Reject::kTopologyUnsupported, "ranks = ", d.ranks(), " exceed the ", kMaxGroupRanks,
            " that share the memory of one host");
}

Eligibility require_cpu_ranks(const Deployment& d) {
  if (d.device == Device::kCpu) return Eligibility::yes();
  return no(
      Reject::kPathNotEnabled, "parallel is ", to_string(d.parallel),
      " on cuda, and the exchange of tokens between GPUs is not built in this version; ask for "
      "tep or ttp, whose ranks all-reduce, or for device cpu");
}

Eligibility require_wire(const Problem& p) {
  if (p.combine != CombinePrecision::kNvfp4 || p.expert_hidden() % 2 == 0)
    return Eligibility::yes();
  return no(Reject::kShapeUnaligned, "the combine is nvfp4 and its rows are ", p.expert_hidden(),
            " wide; an even width is needed (two codes share a byte)");
}

}  // namespace switchyard::comm
