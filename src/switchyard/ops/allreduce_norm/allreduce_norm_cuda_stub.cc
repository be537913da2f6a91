// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/ops/allreduce_norm/allreduce_peers.h"

namespace switchyard::ops {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("allreduce: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

void allreduce_norm_cuda(const AllReduceCall& call, AllReduceStrategy, const AllReducePeers&,
                         const AllReduceGeometry&, Stream) {
  call.check();
  refuse();
}
void empty_exchange_cuda(std::uint32_t*, std::int64_t, Stream) { refuse(); }

}  // namespace switchyard::ops
