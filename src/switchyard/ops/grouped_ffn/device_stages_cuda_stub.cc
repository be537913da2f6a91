// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/ops/grouped_ffn/device_stages.h"

namespace switchyard::ops {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("expert FFN: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

void sort_and_gather_cuda(const DeviceSort&, const DeviceGather&, Stream) { refuse(); }
void route_and_arrange_cuda(const RouteArgs&, const DeviceSort&, const DeviceGather&, Stream) {
  refuse();
}
void quantize_rows_cuda(const DeviceQuantize&, Stream) { refuse(); }
void capture_rows_cuda(const DeviceCapture&, Stream) { refuse(); }
void finalize_cuda(const DeviceFinalize&, Stream) { refuse(); }
void write_rows_cuda(const DeviceFinalize&, Stream) { refuse(); }
void skip_rows_cuda(std::int32_t*, std::int64_t, Stream) { refuse(); }
void round_rows_cuda(const DeviceRounding&, Stream) { refuse(); }
void copy_rows_cuda(const DeviceCopy&, Stream) { refuse(); }
void spread_rows_cuda(const DeviceSpread&, Stream) { refuse(); }
void shared_gate_cuda(const DeviceSharedGate&, Stream) { refuse(); }

}  // namespace switchyard::ops
