// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "switchyard/base/dtype.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/quantize/quantize_math.h"

/// The activation quantisers as pieces of kernels, the same bits as quantize_row_cpu(); for .cu
/// files only.
namespace switchyard::ops::sm90 {

/// Largest magnitude among neighbouring lanes, `lanes` of them; NaN when one of them is. The lanes
/// of one group have to be together, other lanes may be elsewhere.
template <int lanes>
__device__ float amax_of_lanes(float amax) {
  const int lane = threadIdx.x % 32;
  const unsigned group = (lanes == 32 ? ~0u : (1u << (lanes % 32)) - 1) << (lane / lanes * lanes);
  int bits = int(formats::float_bits(amax));
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2)
    bits = max(bits, __shfl_xor_sync(group, bits, step));
  return formats::bits_float(std::uint32_t(bits));
}

/// Largest magnitude of a lane's values, as block_amax().
template <int count>
__device__ float amax_of_values(const float (&v)[count]) {
  int largest = 0;
#pragma unroll
  for (int i = 0; i < count; ++i)
    largest = max(largest, int(formats::float_bits(v[i]) & 0x7fffffffu));
  return formats::bits_float(std::uint32_t(largest));
}

/// What a quantiser is told of a row: the static scale, or the token's.
struct RowQuantizer {
  formats::ActivationQuant kind = formats::ActivationQuant::kNone;
  float scale = 1;
};

/// MXFP8, the scale folded in; 32 columns share one.
template <int count>
__device__ void quantize_mxfp8(const float (&v)[count], std::uint16_t (&bits)[count]) {
  const float amax = amax_of_lanes<int(formats::kMxBlock) / count>(amax_of_values(v));
  const std::uint8_t code = formats::mxfp8_scale(amax);
  const float scale = formats::decode_e8m0(code), reciprocal = formats::reciprocal_e8m0(code);
#pragma unroll
  for (int i = 0; i < count; ++i)
    bits[i] = amax == 0 ? std::uint16_t(0) : mxfp8_value(v[i], reciprocal, scale);
}

/// NVFP4, the scale folded in; 16 columns share one.
template <int count>
__device__ void quantize_nvfp4(const float (&v)[count], float global,
                               std::uint16_t (&bits)[count]) {
  const float g = formats::nvfp4_encode_scale(global);
  const float amax = amax_of_lanes<int(formats::kNvfp4Block) / count>(amax_of_values(v));
  const float scale = formats::decode_e4m3(formats::nvfp4_scale(amax, g));
  const float multiplier = formats::nvfp4_multiplier(scale, g);
#pragma unroll
  for (int i = 0; i < count; ++i)
    bits[i] = scale == 0 ? std::uint16_t(0) : nvfp4_value(v[i], multiplier, scale);
}

/// The values of `count` neighbouring columns per lane, for the kinds whose blocks are at most 32
/// columns or whose scale is known; neighbouring lanes hold neighbouring columns.
template <int count>
__device__ void quantize_values(const RowQuantizer& q, const float (&v)[count],
                                std::uint16_t (&bits)[count]) {
  switch (q.kind) {
    case formats::ActivationQuant::kMxfp8:
      return quantize_mxfp8(v, bits);
    case formats::ActivationQuant::kNvfp4:
      return quantize_nvfp4(v, q.scale, bits);
    case formats::ActivationQuant::kNone:
#pragma unroll
      for (int i = 0; i < count; ++i) bits[i] = bf16_bits(v[i]);
      return;
    default:
#pragma unroll
      for (int i = 0; i < count; ++i) bits[i] = fp8_value(v[i], q.scale);
  }
}

/// The codes of x / scale, four columns in a word: encode_e4m3() of each, in the hardware's steps.
__device__ inline std::uint32_t e4m3_codes(const float* x, float scale) {
  std::uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(low)
      : "f"(__fdiv_rn(x[1], scale)), "f"(__fdiv_rn(x[0], scale)));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
      : "=h"(high)
      : "f"(__fdiv_rn(x[3], scale)), "f"(__fdiv_rn(x[2], scale)));
  return low | std::uint32_t(high) << 16;
}

/// Both planes of values that were rounded to fp16.
template <int count>
__device__ void split_fp16(const float (&v)[count], std::uint16_t (&high)[count],
                           std::uint16_t (&low)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float x = fp16_to_float(float_to_fp16(v[i]));
    high[i] = bf16_bits(x);
    const float rest = x - bf16_to_float(high[i]);
    const bool finite = (formats::float_bits(x) & 0x7fffffffu) < formats::kInfinityBits;
    low[i] = finite ? exact_bf16_bits(rest) : std::uint16_t(0);
  }
}

/// Two neighbouring bf16 as a word.
__device__ inline std::uint32_t pair_of(std::uint16_t low, std::uint16_t high) {
  return low | std::uint32_t(high) << 16;
}

}  // namespace switchyard::ops::sm90
