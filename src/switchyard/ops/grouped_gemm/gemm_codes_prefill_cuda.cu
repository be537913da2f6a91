// SPDX-License-Identifier: Apache-2.0
#include "switchyard/ops/grouped_gemm/gemm_prefill_cuda.h"
#include "switchyard/ops/grouped_gemm/prefill_tokens_sm90.h"
#include "switchyard/ops/quantize/quantize_sm90.h"

namespace switchyard::ops {
namespace {

using namespace sm90::prefill;  // NOLINT(google-build-using-namespace): the ends are part of it

/// The larger magnitude as bits; NaN is the largest.
__device__ int larger(int so_far, float x) {
  return max(so_far, int(formats::float_bits(x) & 0x7fffffffu));
}

/// The scale of 128 columns of one token, which four lanes hold.
__device__ float scale_of(int most, formats::ActivationQuant quant) {
  most = max(most, __shfl_xor_sync(~0u, most, 1));
  most = max(most, __shfl_xor_sync(~0u, most, 2));
  return formats::fp8_activation_scale(formats::bits_float(std::uint32_t(most)),
                                       quant == formats::ActivationQuant::kFp8Block128Ue8m0);
}

/// Divides by a scale, rounded correctly: it is at least 2^-22, so what is lost of a small
/// remainder is lost to the code too. An infinite scale leaves zeros, and NaN of what is infinite.
struct Divisor {
  float d, r;

  __device__ explicit Divisor(float scale) : d(scale == HUGE_VALF ? 0 : scale), r(1.0f / scale) {}
  __device__ float of(float n) const {
    float q = __fmul_rn(n, r);
    q = __fmaf_rn(r, __fmaf_rn(-d, q, n), q);
    q = __fmaf_rn(r, __fmaf_rn(-d, q, n), q);
    // The sign of a zero is that of n.
    return formats::bits_float((formats::float_bits(q) & 0x7fffffffu) |
                               (formats::float_bits(n) & 0x80000000u));
  }
};

/// Two codes in a word of 16 bits.
__device__ std::uint16_t code_pair(float low, float high) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

/// Gate and up, quantised per 1 x 128: four lanes have all 128 columns of a token.
struct StoreGatedCodes {
  static constexpr bool kPaired = true;
  ActivationEnd end;

  __device__ void ask(E4m3Operands::Asked& to, const Work& w, int tiles) const {
    ask_activation(to, end, w, tiles);
  }

  /// A token's codes go to where a row of 128 has them, swizzled.
  __device__ __forceinline__ static void store_codes(const TokenSums& acc, int i, float scale,
                                                     std::byte* codes) {
    const int token = Place::token();
    std::byte* row = codes + (token + 8 * i) * 128;
    const Divisor divide(scale);
    for_groups([&](int half, int group) {
      if (group % 2 == 1) return;
      const float* v = acc.v[half] + group * 4 + 2 * i;
      const int c = half * 64 + group / 2 * 8 + Place::column();
      *reinterpret_cast<std::uint16_t*>(row + ((c / 16) ^ token) * 16 + c % 16) =
          code_pair(divide.of(v[0]), divide.of(v[1]));
    });
  }

  __device__ __forceinline__ void store(TokenSums& acc, const Place& place,
                                        std::byte* codes) const {
    activate_sums<true>(acc, end, place);
    int most[2] = {0, 0};
    for_groups([&](int half, int group) {
      if (group % 2 == 1) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i / 2] = larger(most[i / 2], acc.v[half][group * 4 + i]);
    });
    const int block = place.row_tile / 4;
    if (Place::lane() == 0) wait_for_stores_to_read();
    __syncwarp();  // the codes of the tile before have left
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = Place::token() + 8 * i;
      const float scale = scale_of(most[i], end.quant);
      if (Place::lane() % 4 == 0 && place.has(token))
        end.block_scales[block * end.out.capacity + place.first + token] = scale;
      store_codes(acc, i, scale, codes);
    }
    sm90::fence_async_proxy();
    __syncwarp();
    if (Place::lane() == 0)
      store_bulk(end.out.at(place.first, block * 8), codes,
                 min(place.tokens, E4m3Operands::kWarpTokens) * 128);
  }
};

}  // namespace

void gemm_codes_prefill_cuda(const DeviceGemm& gemm, const ActivationEnd& end, Stream stream) {
  launch<E4m3Operands>("grouped GEMM of FC1: launch", gemm, StoreGatedCodes{end}, stream);
}

}  // namespace switchyard::ops
