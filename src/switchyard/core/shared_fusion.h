// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "switchyard/core/deployment.h"
#include "switchyard/core/eligibility.h"
#include "switchyard/core/problem.h"

namespace switchyard {

/// The switch that opts in beside Deployment::fuse_shared.
inline constexpr std::string_view kSharedFusionSwitch = "SWITCHYARD_SHARED_EXPERT_FUSION";

/// What the shared experts are, where it may differ from the routed ones.
struct SharedFusionQuestion {
  std::string format;               // of the shared weights; aliases fold
  Activation activation;            // of the shared FFN
  bool same_static_scales = true;   // its static activation scales are the routed experts'
  std::int64_t slice_multiple = 1;  // its weights cut into experts at such multiples only
};

/// Whether the shared experts run as ids E .. E+n-1 with weight 1 added after the factor: opted in,
/// one DP and one EP rank, shared width n x I cut between scale blocks, no gate, format, activation
/// and static scales as the routed experts', no zero experts, k + n within the choice limit.
/// Packing and layer both ask only this.
Eligibility can_fuse_shared(const Problem& p, const Deployment& d, const SharedFusionQuestion& q);

}  // namespace switchyard
