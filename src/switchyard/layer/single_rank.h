// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/layer/layer.h"
#include "switchyard/layer/token_routing.h"

namespace switchyard::layer {

/// The scheduler of one rank: route, shared expert, routed experts, finalize. A communicating
/// scheduler takes its place between route_tokens() and the experts.
void single_rank_forward(const Layer& layer, const ForwardArgs& args);
/// Its workspace; reads the same layout as the forward.
std::size_t single_rank_workspace(const Layer& layer, std::int64_t max_tokens);

}  // namespace switchyard::layer
