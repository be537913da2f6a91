// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/base/device.h"
#include "switchyard/core/activation.h"
#include "switchyard/formats/matrix.h"
#include "switchyard/ops/grouped_gemm/tile.h"

namespace switchyard::ops {

/// One grouped GEMM on the device: for each expert, its tile-packed weights times its tokens.
///
/// Every tier multiplies with the same instruction and adds K in ascending order into one
/// accumulator (under block scales into one per 128 columns, and those into another): a row's bits
/// depend on its own values only, not on the tier or its neighbours.
/// Shapes:  weights: expert e's tiles at weights + e * expert_stride, as `layout` says; x: sorted
///          rows as RowTiles says; offsets, counts [experts]: first sorted row of each expert, a
///          multiple of 8, and its rows; block_scales [ceil(cols / 128)][x.capacity]: what
///          multiplies 128 columns of a row, or null. All in device memory.
/// Units:   expert_stride in bytes. max_tokens bounds the rows of an expert, max_rows the rows of
///          all: they choose the tier and the grid. sorted_early: offsets and counts stand since
///          before the launch in front of this one, so weights may be fetched while that one runs.
struct DeviceGemm {
  const std::byte* weights = nullptr;
  std::int64_t expert_stride = 0;
  TileLayout layout;
  RowTiles x;
  const float* block_scales = nullptr;
  const std::int32_t* offsets = nullptr;
  const std::int32_t* counts = nullptr;
  std::int64_t experts = 0;
  std::int64_t max_tokens = 0;
  std::int64_t max_rows = 0;
  bool sorted_early = false;
};

/// What the sums are multiplied by before biases join.
///
/// Shapes:  factors: expert e's packed rows' [row_tiles * 64] fp32 at + e * stride bytes; tokens
///          [capacity]: of each sorted row; experts: one fp32 at + e * stride. Null: none.
struct SumScales {
  const std::byte* factors = nullptr;
  const float* tokens = nullptr;
  const std::byte* experts = nullptr;
};

/// FC1's end: scales, biases, activation, and the quantiser in front of FC2 where a tile's columns
/// suffice for it; else fp32 rows for quantize_rows_cuda().
///
/// Shapes:  gate_bias, up_bias: expert e's [inter] fp32 at + e * stride bytes, or null; params
///          [experts]; out: FC2's input, columns from inter to the end of the tiles become 0;
///          block_scales: of `out`, as in DeviceGemm, for quantisers that have them; static_scale:
///          expert e's at + e * stride, read by static quantisers; rows: fp32 with rows_stride, a
///          multiple of 4, for quantisers that may need them; arrivals [capacity / 8]
///          [rows_stride / 128]: 0, for those that counts_blocks() names: who comes last to 128
///          columns quantises them.
/// Units:   dtype: what kNone rounds to.
struct ActivationEnd {
  SumScales scales;
  const std::byte* gate_bias = nullptr;
  const std::byte* up_bias = nullptr;
  std::int64_t stride = 0;
  const ActivationParams* params = nullptr;
  formats::ActivationQuant quant = formats::ActivationQuant::kNone;
  const std::byte* static_scale = nullptr;
  RowTiles out;
  float* block_scales = nullptr;
  float* rows = nullptr;
  std::int64_t rows_stride = 0;
  std::int32_t* arrivals = nullptr;
  std::int64_t inter = 0;
  bool gated = true;
};

/// True for quantisers that need more of a row than FC1's end sees in most tiers.
constexpr bool ends_in_rows(formats::ActivationQuant q) {
  return q == formats::ActivationQuant::kFp8Block128 ||
         q == formats::ActivationQuant::kFp8Block128Ue8m0 ||
         q == formats::ActivationQuant::kFp8Token;
}

/// The tier whose end counts.
inline constexpr std::int64_t kCountingTile = 8;

/// True for those of them that FC1's end serves all the same in that tier, block by block, where
/// ActivationEnd has counters.
constexpr bool counts_blocks(formats::ActivationQuant q, bool codes) {
  return codes && has_block_scales(q);
}

/// FC2's end: scales, bias, fp32 rows.
///
/// Shapes:  bias as in ActivationEnd, [hidden]; out [rows, out_stride] fp32.
struct RowsEnd {
  SumScales scales;
  const std::byte* bias = nullptr;
  std::int64_t stride = 0;
  float* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t hidden = 0;
};

/// How many tokens one tile takes; the list of tiers, for the launch and for the tests.
inline constexpr std::int64_t kTokenTiles[] = {8, 16, 32, 48, 64, 128};

/// The tier of kTokenTiles[0] in which a warpgroup decodes a whole tile of weights at a time and
/// not half of one: more of it is under way at once, which counts where few warpgroups share a
/// multiprocessor. It is forced only.
inline constexpr std::int64_t kWholeTile = 1;

/// True for the codes that have it: those that are decoded, without sums of their own per block.
constexpr bool decodes_whole(TileCode code) {
  return code == TileCode::kE4m3 || code == TileCode::kMxfp4 || code == TileCode::kNvfp4 ||
         code == TileCode::kNvfp4Wide;
}

/// The tier that a call of these sizes runs: tokens per tile. The choice changes no bit.
std::int64_t token_tile(std::int64_t max_tokens, std::int64_t max_rows, std::int64_t experts);

/// FC1 (the rows of both projections paired, see paired_row()), enqueued on `stream`. Returns
/// whether `end.out` is written; else end.rows are, and wait for quantize_rows_cuda().
///
/// `tile` forces a tier of kTokenTiles, kWholeTile, or the one of gemm_prefill_cuda.h; 0 chooses.
/// It has no default, so that a tactic cannot be lost on its way here: no bit would show it.
/// Errors:  DeviceError when the launch fails, or when the build has no CUDA.
bool gemm_activation_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream,
                          std::int64_t tile);
/// FC2, as gemm_activation_cuda().
void gemm_rows_cuda(const DeviceGemm& gemm, const RowsEnd& end, Stream stream, std::int64_t tile);

}  // namespace switchyard::ops
