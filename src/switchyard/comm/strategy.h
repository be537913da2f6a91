// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "switchyard/comm/exchange.h"
#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/problem.h"

namespace switchyard::comm {

/// One way to exchange tokens between expert-parallel ranks.
struct Strategy {
  std::string_view name;
  Contract contract{};
  /// Pure: judged before anything is allocated, and the same on every rank.
  Eligibility (*can_implement)(const Problem& problem, const Deployment& deployment) = nullptr;
  /// Builds this rank's end; null where there is no exchange without the experts (`fused`), and for
  /// one that is declared only, whose gate never says yes.
  std::unique_ptr<Exchange> (*make)(Group& group, const ExchangeShape& shape,
                                    const ExchangeOptions& options) = nullptr;
};

/// Every token to every rank; the only one that serves cut experts.
const Strategy& all_gather();
/// Rows are written into the receiver's memory, shares are read from there.
const Strategy& one_sided();
/// Rows and shares pass through FIFOs of fixed size.
const Strategy& two_sided();
/// One row per choice, grouped by expert; the combine weighs them.
const Strategy& expert_major();
/// As one_sided, with the rows back to back.
const Strategy& compact();
/// Between GPUs through NCCL; declared only.
const Strategy& nccl();
/// By a leaf that exchanges tokens itself.
const Strategy& fused();

// Building blocks of their gates.

/// Attention is data-parallel over more than one rank, on the CPU: `dep`, or `dtp` where
/// `serves_dtp`.
Eligibility require_dispatch(const Deployment& d, bool serves_dtp);
/// Experts are not cut: tp is 1.
Eligibility require_no_tp(const Deployment& d);
/// At most kMaxGroupRanks ranks, whose memory one host maps.
Eligibility require_ranks(const Deployment& d);
/// Ranks are on the CPU, which alone exchanges tokens.
Eligibility require_cpu_ranks(const Deployment& d);
/// The combine's wire form can hold a row: an even width for nvfp4.
Eligibility require_wire(const Problem& p);

}  // namespace switchyard::comm
