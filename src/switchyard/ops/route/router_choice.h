// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "switchyard/core/routing.h"

/// Which of the CUDA twin's routers serves a recipe. Pure.
namespace switchyard::ops {

/// The general router, and the classes of recipes that have one compiled for them.
enum class RouterKind : std::uint8_t {
  kGeneral,
  kSoftmaxOverChosen,  // top k of the logits, a softmax over them
  kSoftmax,            // top k of the logits, their share of the softmax over all
  kSigmoid,            // top k of sigmoid and, where there is one, a correction bias
  kSigmoidGroups       // the same behind a choice among groups of 32 by their two best
};

/// "general", "softmax_over_chosen" and so on.
std::string_view to_string(RouterKind kind);

/// Ids that one lane of a compiled router can hold at most.
inline constexpr int kMostHeld = 16;
/// What compiled routers are built for.
inline constexpr int kHeldSizes[] = {4, 8, kMostHeld};

/// A router: the general one holds nothing.
struct RouterChoice {
  RouterKind kind = RouterKind::kGeneral;
  int held = 0;  // ids of a lane, of kHeldSizes

  bool operator==(const RouterChoice&) const = default;
};

/// The compiled router of a recipe, or the general one where none serves it.
RouterChoice compiled_router(const RoutingSpec& spec);

/// What a caller of route_cuda() wants: its own choice by the call, or one of the two.
enum class RouterWish : std::uint8_t { kOwn, kGeneral, kCompiled };

/// Tokens up to which a call's own choice is the compiled router, one warp a block.
inline constexpr std::int64_t kMostCompiledTokens = 64;

/// The router of a call.
RouterChoice choose_router(const RoutingSpec& spec, std::int64_t tokens, RouterWish wish);

}  // namespace switchyard::ops
