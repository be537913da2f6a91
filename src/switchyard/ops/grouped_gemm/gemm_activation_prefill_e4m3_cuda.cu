// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_activation_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_e4m3_sm90.h"
#include "switchyard/ops/quantize/quantize_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it
using Scratch = E4m3Operands::Scratch;

/// Four columns: fp32 rows for quantisers that read more of a row, else codes with a static scale.
__device__ void write_quad(const ActivationEnd& end, float scale, std::int64_t row, int col,
                           Quad& y) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (col + i >= end.inter) y.v[i] = 0;
  if (end.rows) {
    *reinterpret_cast<float4*>(end.rows + row * end.rows_stride + col) =
        make_float4(y.v[0], y.v[1], y.v[2], y.v[3]);
    return;
  }
  *reinterpret_cast<std::uint32_t*>(end.out.at(row, col / 16) + col % 16) =
      sm90::e4m3_codes(y.v, scale);
}

/// Any kind, by way of the warp's board.
template <bool gated>
struct StoreActivated {
  static constexpr bool kPaired = gated;
  static constexpr int kStep = 64;
  ActivationEnd end;

  template <int size>
  __device__ void store_tile(float (&acc)[size], const Sums& sums, Board& board) const {
    const ActivationParams p = end.params[sums.expert];
    const std::int64_t offset = sums.expert * end.stride;
    const float* bias =
        end.up_bias ? reinterpret_cast<const float*>(end.up_bias + offset) : nullptr;
    const float scale =
        end.static_scale ? *reinterpret_cast<const float*>(end.static_scale + offset) : 1;
    scale_sums(acc, end.scales, end.stride, sums);
    if (gated && (end.gate_bias || end.up_bias))
      add_pair_bias(acc, end, sums.expert, pair_column(sums.row_tile) + Sums::lane() / 4);
    const int first =
        gated ? pair_column(sums.row_tile) : sums.row_tile * int(kTileRows) + Sums::warp() * 16;
    constexpr int kHalf = gated ? 4 : 8;  // a lane's columns
    for_each_token(acc, sums.tokens, board, [&](int token, int on_board) {
#pragma unroll 1
      for (int row = Sums::lane() % 2 * kHalf, last = row + kHalf; row < last; row += 4) {
        Quad y = load_sums(board, on_board, row), up = y;
        if (gated) up = load_sums(board, on_board, row + 8);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!gated && bias && first + row + i < end.inter) up.v[i] += bias[first + row + i];
        activate_quad(p, y, up);
        write_quad(end, scale, sums.first + token, first + row, y);
      }
    });
  }

  template <int size>
  __device__ void store(float (&acc)[2][size], int tiles, const Sums& first, Scratch& s) const {
#pragma unroll
    for (int t = 0; t < 2; ++t)
      if (t < tiles) store_tile(acc[t], tile_of(first, t), s.board());
  }
};

}  // namespace

bool gemm_activation_prefill_e4m3_cuda(const DeviceGemm& gemm, const ActivationEnd& end,
                                       Stream stream) {
  const char* what = "grouped GEMM of FC1: launch";
  if (end.gated && has_block_scales(end.quant)) {
    gemm_codes_prefill_cuda(gemm, end, stream);
    return true;
  }
  if (end.gated) {
    launch<E4m3Operands>(what, gemm, StoreActivated<true>{end}, stream);
  } else {
    launch<E4m3Operands>(what, gemm, StoreActivated<false>{end}, stream);
  }
  return end.rows == nullptr;
}

}  // namespace switchyard::ops
