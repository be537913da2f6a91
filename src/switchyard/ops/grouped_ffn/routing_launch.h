// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "switchyard/base/dtype.h"
#include "switchyard/core/routing.h"
#include "switchyard/core/routing_launch.h"
#include "switchyard/core/tactic.h"

/// Whether routing shares the launch that sorts and quantises on cuda, and why not. Pure.
namespace switchyard::ops {

/// Every answer: routing is in that launch, or a reason why it has one of its own.
enum class RoutingLaunch : std::uint8_t {
  kTogether,
  kAskedApart,     // the tactic says so
  kCallersChoice,  // the caller brings ids and weights: nothing is routed
  kFusedShared,    // fused shared experts are written behind the choices
  kManyTokens,     // more than kMostJoinedTokens
  kNoRouter,       // no router is compiled for the recipe, or not for so many experts
  kWeighedInput,   // routing weights multiply the input
  kFp16,           // the launch reads bf16
  kAmongRanks,     // a rank turns the choices into numbers of its own experts in between
  kOnCpu           // there are no launches
};

/// Tokens up to which one launch does all; a warp routes each.
inline constexpr std::int64_t kMostJoinedTokens = 8;

/// "together", "asked_apart" and so on.
std::string_view to_string(RoutingLaunch answer);

/// A call of routed experts as far as the answer depends on it.
struct RoutingCall {
  const RoutingSpec* spec = nullptr;
  std::int64_t tokens = 0;
  std::int64_t choices = 0;    // of a token, fused shared experts included
  Dtype dtype = Dtype::kBf16;  // of the hidden states
  TileRouting asked = TileRouting::kPlanned;
};

/// The answer for cuda.
RoutingLaunch routing_launch(const RoutingCall& call);
/// The same in a sentence with the failing value and the limit.
std::string explain(RoutingLaunch answer, const RoutingCall& call);
/// Both.
RoutingLaunchReport report(RoutingLaunch answer, const RoutingCall& call);

}  // namespace switchyard::ops
