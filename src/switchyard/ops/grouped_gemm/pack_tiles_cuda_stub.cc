// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/errors.h"
#include "switchyard/ops/grouped_gemm/pack_tiles_cuda.h"

namespace switchyard::ops {

void pack_tiles_cuda(const TilePiece&, Stream) {
  throw DeviceError("pack_tiles: this build has no CUDA; configure with -DSWITCHYARD_CUDA=ON");
}

}  // namespace switchyard::ops
