// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/grouped_gemm_cuda.h"

/// Both GEMMs of each tile code, compiled in files of their own.
namespace switchyard::ops::sm90 {

/// The launches of weights in `code`.
template <TileCode code>
struct TileGemm {
  /// FC1, as gemm_activation_cuda().
  static void activation(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream,
                         std::int64_t tile);
  /// FC2, as gemm_rows_cuda().
  static void rows(const DeviceGemm& gemm, const RowsEnd& end, Stream stream, std::int64_t tile);
};

}  // namespace switchyard::ops::sm90
