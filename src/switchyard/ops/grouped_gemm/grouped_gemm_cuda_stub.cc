// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

namespace switchyard::ops {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("grouped GEMM: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace

bool gemm_activation_cuda(const DeviceGemm&, const ActivationEnd&, Stream, std::int64_t) {
  refuse();
}
void gemm_rows_cuda(const DeviceGemm&, const RowsEnd&, Stream, std::int64_t) { refuse(); }

}  // namespace switchyard::ops
