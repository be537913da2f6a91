// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_ffn/routing_launch.h"

#include "switchyard/base/check.h"
#include "switchyard/ops/route/router_choice.h"

namespace switchyard::ops {

std::string_view to_string(RoutingLaunch answer) {
  switch (answer) {
    case RoutingLaunch::kTogether:
      return "together";
    case RoutingLaunch::kAskedApart:
      return "asked_apart";
    case RoutingLaunch::kCallersChoice:
      return "callers_choice";
    case RoutingLaunch::kFusedShared:
      return "fused_shared";
    case RoutingLaunch::kManyTokens:
      return "many_tokens";
    case RoutingLaunch::kNoRouter:
      return "no_router";
    case RoutingLaunch::kWeighedInput:
      return "weighed_input";
    case RoutingLaunch::kFp16:
      return "fp16";
    case RoutingLaunch::kAmongRanks:
      return "among_ranks";
    case RoutingLaunch::kOnCpu:
      return "on_cpu";
  }
  throw InternalError(cat("routing launch ", int(answer), " has no text"));
}

namespace {

/// Whether the joined launch serves such a call, whatever is asked: kTogether, or why not.
RoutingLaunch serves(const RoutingCall& call) {
  const RoutingSpec& spec = *call.spec;
  if (spec.choice == ChoiceRule::kCaller) return RoutingLaunch::kCallersChoice;
  if (call.choices != spec.top_k) return RoutingLaunch::kFusedShared;
  if (call.tokens > kMostJoinedTokens) return RoutingLaunch::kManyTokens;
  if (compiled_router(spec).kind == RouterKind::kGeneral) return RoutingLaunch::kNoRouter;
  if (spec.placement == WeightPlacement::kInput) return RoutingLaunch::kWeighedInput;
  return call.dtype == Dtype::kBf16 ? RoutingLaunch::kTogether : RoutingLaunch::kFp16;
}

}  // namespace

RoutingLaunch routing_launch(const RoutingCall& call) {
  // What cannot be stands before what was not asked for: a reader can change only the latter.
  const RoutingLaunch answer = serves(call);
  const bool apart = call.asked == TileRouting::kApart;
  return answer == RoutingLaunch::kTogether && apart ? RoutingLaunch::kAskedApart : answer;
}

std::string explain(RoutingLaunch answer, const RoutingCall& call) {
  const std::string_view apart = "routing has a launch of its own: ";
  switch (answer) {
    case RoutingLaunch::kTogether:
      return "routing, sorting and quantising share a launch";
    case RoutingLaunch::kAskedApart:
      return cat(apart, "the tactic asks for it with routing=", int(call.asked));
    case RoutingLaunch::kCallersChoice:
      return "nothing is routed: the caller brings the choices";
    case RoutingLaunch::kFusedShared:
      return cat(apart, "fused shared experts are written behind its ", call.spec->top_k,
                 " choices, the experts read ", call.choices);
    case RoutingLaunch::kManyTokens:
      return cat(apart, call.tokens, " tokens, the limit is ", kMostJoinedTokens);
    case RoutingLaunch::kNoRouter:
      return cat(apart, "no router is compiled for ", to_string(call.spec->method), " over ",
                 call.spec->num_experts + call.spec->zero_experts, " experts, the limit is ",
                 32 * kMostHeld);
    case RoutingLaunch::kWeighedInput:
      return cat(apart, "its weights multiply the experts' input");
    case RoutingLaunch::kFp16:
      return cat(apart, "hidden states are ", switchyard::to_string(call.dtype),
                 ", the joined launch reads bf16");
    case RoutingLaunch::kAmongRanks:
      return cat(apart, "a rank looks its own experts up in the choices first");
    case RoutingLaunch::kOnCpu:
      return "no launches: the layer runs on a cpu";
  }
  throw InternalError(cat("routing launch ", int(answer), " has no sentence"));
}

RoutingLaunchReport report(RoutingLaunch answer, const RoutingCall& call) {
  return {answer == RoutingLaunch::kTogether, std::string(to_string(answer)),
          explain(answer, call)};
}

}  // namespace switchyard::ops
