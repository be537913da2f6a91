// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "switchyard/ops/grouped_gemm/gemm_ends_sm90.h"
#include "switchyard/ops/grouped_gemm/gemm_launch_sm90.h"
#include "switchyard/ops/grouped_gemm/gemm_tiles_sm90.h"

/// What TileGemm is made of; for the .cu files that instantiate it.
namespace switchyard::ops::sm90 {

/// One projection or two are two kernels.
template <TileCode code>
void TileGemm<code>::activation(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream,
                                std::int64_t tile) {
  using Tiles = TilesOf<code>;
  const char* what = "grouped GEMM of FC1: launch";
  if (end.gated) return launch_gemm<Tiles>(what, gemm, StoreActivated<true>{end}, stream, tile);
  launch_gemm<Tiles>(what, gemm, StoreActivated<false>{end}, stream, tile);
}

/// One kernel.
template <TileCode code>
void TileGemm<code>::rows(const DeviceGemm& gemm, const RowsEnd& end, Stream stream,
                          std::int64_t tile) {
  launch_gemm<TilesOf<code>>("grouped GEMM of FC2: launch", gemm, StoreRows{end}, stream, tile);
}

}  // namespace switchyard::ops::sm90
