// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_activation_sm90.h"
#include "switchyard/ops/grouped_gemm/prefill_e4m3_sm90.h"
#include "switchyard/ops/quantize/quantize_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it
using Scratch = E4m3Operands::Scratch;

/// One step of the way to the largest of eight lanes: each keeps half of its values, of which it
/// has `count`, and gets the same half of the lane `mask` further.
template <int count, int size>
__device__ void keep_half(int (&most)[size], int mask) {
  const bool upper = Sums::lane() & mask;
#pragma unroll
  for (int i = 0; i < count / 2; ++i) {
    const int give = upper ? most[i] : most[i + count / 2];
    const int keep = upper ? most[i + count / 2] : most[i];
    most[i] = max(keep, __shfl_xor_sync(~0u, give, mask));
  }
}

/// The largest magnitudes among a warp's columns of both tiles, per token.
template <int size>
__device__ void store_amax(const float (&acc)[2][size], float* amax) {
  constexpr int kOwn = size / 2, kPadded = (kOwn + 7) / 8 * 8;  // tokens of a lane
  int most[kPadded];
#pragma unroll
  for (int n = 0; n < kPadded; ++n) {
    most[n] = 0;
    if (n >= kOwn) continue;
    const float both[2] = {acc[0][n / 2 * 4 + n % 2], acc[1][n / 2 * 4 + n % 2]};
    most[n] = int(formats::float_bits(sm90::amax_of_values(both)));
  }
  keep_half<kPadded>(most, 16);
  keep_half<kPadded / 2>(most, 8);
  keep_half<kPadded / 4>(most, 4);
  const int lane = Sums::lane();
  const int first = (lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2) * (kPadded / 8);
#pragma unroll
  for (int i = 0; i < kPadded / 8; ++i) {
    const int n = first + i;
    if (n < kOwn)
      amax[n / 2 * 8 + lane % 4 * 2 + n % 2] = formats::bits_float(std::uint32_t(most[i]));
  }
}

/// Two codes in a word of 16 bits.
__device__ std::uint32_t code_pair(float low, float high) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

/// Gate and up, quantised per 1 x 128: a block of the cluster has all 128 columns of its tokens.
struct StoreGatedCodes {
  static constexpr bool kPaired = true;
  static constexpr int kStep = 16;
  ActivationEnd end;

  /// Leaves the activations where the gates were; those past `inter` are 0.
  template <int size>
  __device__ void activate(float (&acc)[size], const Sums& sums, Board& board) const {
    const ActivationParams p = end.params[sums.expert];
    const int col = pair_column(sums.row_tile) + Sums::lane() / 4;
    scale_sums(acc, end.scales, end.stride, sums);
    if (end.gate_bias || end.up_bias) add_pair_bias(acc, end, sums.expert, col);
    if (is_plain(p) && all_near(acc, sums.tokens)) {
#pragma unroll
      for (int i = 0; i < size; ++i)
        if (i % 4 < 2) acc[i] = swiglu_near(acc[i], acc[i + 2]);
    } else {
      const int row = Sums::lane() % 2 * 4;  // of the gate; up's is 8 further
      visit_tokens<true>(acc, sums.tokens, board, [&](int, int token) {
        Quad y = load_sums(board, token, row);
        activate_quad(p, y, load_sums(board, token, row + 8));
        board.put(token, row, make_float4(y.v[0], y.v[1], y.v[2], y.v[3]));
      });
    }
#pragma unroll
    for (int i = 0; i < size; ++i)
      if (col >= end.inter) acc[i] = 0;
  }

  /// The scale of one token; `block` counts 128 columns.
  __device__ void store_scale(int token, int block, const Sums& sums, Scratch& s) const {
    float all[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all[w] = s.amax[w][token];
    const float scale = formats::fp8_activation_scale(
        sm90::amax_of_values(all), end.quant == formats::ActivationQuant::kFp8Block128Ue8m0);
    s.scale[token] = scale;
    end.block_scales[block * end.out.capacity + sums.first + token] = scale;
  }

  /// Both tiles' codes go to where a row of 128 has them, swizzled.
  template <int size>
  __device__ static void store_codes(const float (&acc)[2][size], int tokens, Scratch& s) {
    const int lane = Sums::lane(), row = lane / 4;
    const int col = int(threadIdx.x) / 128 * 64 + Sums::warp() * 8 + lane % 4 * 2;
    const auto at = [&](int token, int c) {
      return s.codes + token * 128 + ((c / 16) ^ row) * 16 + c % 16;
    };
#pragma unroll
    for (int j = 0; j < size / 4; ++j) {
      if (j * 8 >= tokens) return;
      const float2 scale = *reinterpret_cast<const float2*>(s.scale + j * 8 + lane % 4 * 2);
      const std::uint32_t low =
          code_pair(__fdiv_rn(acc[0][4 * j], scale.x), __fdiv_rn(acc[1][4 * j], scale.x));
      const std::uint32_t high =
          code_pair(__fdiv_rn(acc[0][4 * j + 1], scale.y), __fdiv_rn(acc[1][4 * j + 1], scale.y));
      const std::uint32_t pairs = sm90::transpose_halves(low | high << 16);
      const int token = j * 8 + row;
      *reinterpret_cast<std::uint16_t*>(at(token, col)) =
          std::uint16_t(__byte_perm(pairs, 0, 0x4420));
      *reinterpret_cast<std::uint16_t*>(at(token, col + 32)) =
          std::uint16_t(__byte_perm(pairs, 0, 0x4431));
    }
  }

  template <int size>
  __device__ void store(float (&acc)[2][size], int, const Sums& first, Scratch& s) const {
    const int block = first.row_tile / 4;
    if (threadIdx.x == 0) wait_for_stores_to_read();
    sync_consumers();  // the codes of the tile before have left
#pragma unroll
    for (int t = 0; t < 2; ++t) activate(acc[t], tile_of(first, t), s.board());
    store_amax(acc, s.amax[threadIdx.x / 32]);
    sync_consumers();
    if (int(threadIdx.x) < first.tokens) store_scale(threadIdx.x, block, first, s);
    sync_consumers();
    store_codes(acc, first.tokens, s);
    sm90::fence_async_proxy();
    sync_consumers();
    if (threadIdx.x == 0)
      store_bulk(end.out.at(first.first, block * 8), s.codes, first.tokens * 128);
    __syncwarp();
  }
};

}  // namespace

void gemm_codes_prefill_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream) {
  launch<E4m3Operands>("grouped GEMM of FC1: launch", gemm, StoreGatedCodes{end}, stream);
}

}  // namespace switchyard::ops
