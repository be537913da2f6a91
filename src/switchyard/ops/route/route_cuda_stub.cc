// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/ops/route/route.h"
#include "switchyard/ops/route/router_gemm.h"
#include "switchyard/ops/route/routing_io.h"

namespace switchyard::ops {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("route: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

void route_cuda(const RouteArgs& args, Stream, RouterWish) {
  args.check_shapes();
  refuse();
}
void router_gemm_cuda(const RouterGemmArgs& args, Stream) {
  args.check();
  refuse();
}
void fill_choices_cuda(const DeviceChoices&, const std::int32_t*, const float*, Stream) {
  refuse();
}
void localise_cuda(const DeviceLocal&, Stream) { refuse(); }
void report_routing_cuda(const DeviceChoices&, const RoutingReport&, Stream) { refuse(); }

}  // namespace switchyard::ops
