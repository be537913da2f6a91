// SPDX-License-Identifier: Apache-2.0
#include "switchyard/core/eligibility.h"

#include "switchyard/base/nearest.h"

namespace switchyard {

std::string_view to_string(Reject r) {
  switch (r) {
    case Reject::kQuantUnsupported:
      return "quant_unsupported";
    case Reject::kDtypeUnsupported:
      return "dtype_unsupported";
    case Reject::kSmUnsupported:
      return "sm_unsupported";
    case Reject::kDepMissing:
      return "dep_missing";
    case Reject::kShapeUnaligned:
      return "shape_unaligned";
    case Reject::kSlotsNotDivisibleByEp:
      return "slots_not_divisible_by_ep";
    case Reject::kTopologyUnsupported:
      return "topology_unsupported";
    case Reject::kLoraUnsupported:
      return "lora_unsupported";
    case Reject::kActivationUnsupported:
      return "activation_unsupported";
    case Reject::kRoutingUnsupported:
      return "routing_unsupported";
    case Reject::kEplbUnsupported:
      return "eplb_unsupported";
    case Reject::kFinalizeFusionRequired:
      return "finalize_fusion_required";
    case Reject::kPathNotEnabled:
      return "path_not_enabled";
    case Reject::kBackendDeprecated:
      return "backend_deprecated";
    case Reject::kNotAnImpl:
      return "not_an_impl";
  }
  throw InternalError(cat("reject reason ", int(r), " has no text"));
}

Reject to_reject(std::string_view s) {
  return to_enum(
      "reject reason", s,
      {Reject::kQuantUnsupported, Reject::kDtypeUnsupported, Reject::kSmUnsupported,
       Reject::kDepMissing, Reject::kShapeUnaligned, Reject::kSlotsNotDivisibleByEp,
       Reject::kTopologyUnsupported, Reject::kLoraUnsupported, Reject::kActivationUnsupported,
       Reject::kRoutingUnsupported, Reject::kEplbUnsupported, Reject::kFinalizeFusionRequired,
       Reject::kPathNotEnabled, Reject::kBackendDeprecated, Reject::kNotAnImpl});
}

}  // namespace switchyard
