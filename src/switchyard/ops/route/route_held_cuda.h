// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/route/route.h"

/// Part of route_cuda(), in a file of its own.
namespace switchyard::ops {

/// Routes by a compiled router: one token a block.
void route_held_cuda(const RouteArgs& args, const RouterChoice& router, Stream stream);

}  // namespace switchyard::ops
