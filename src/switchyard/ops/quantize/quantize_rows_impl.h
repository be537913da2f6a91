// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "switchyard/formats/blocks.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/quantize/quantize.h"
#include "switchyard/ops/quantize/quantize_math.h"

/// The loops of the CPU's row quantiser, included once by each instruction set's source, which
/// gives them its own local copies. Contraction is off, so every width gives the same bits.
namespace switchyard::ops {
namespace {

using formats::ActivationQuant;
using formats::block_amax;
using formats::for_blocks;

/// Writes round(x[i]) for a run of N values, `count` of them valid; the trip count is a constant
/// and the buffer local, so the loop vectorises.
template <std::int64_t N, class Round>
inline void round_run(const float* x, std::int64_t count, std::uint16_t* out, Round round) {
  std::uint16_t values[N];
  for (std::int64_t i = 0; i < N; ++i) values[i] = round(x[i]);
  memcpy(out, values, std::size_t(count) * 2);
}

void zero_run(std::int64_t count, std::uint16_t* out) { memset(out, 0, std::size_t(count) * 2); }

void round_row(const QuantizeRowArgs& a) {
  for_blocks<32>(a.x, a.cols, [&](const float* x, std::int64_t begin, std::int64_t count) {
    round_run<32>(x, count, a.values + begin, [](float v) { return bf16_bits(v); });
  });
}

void fp8_row(const QuantizeRowArgs& a, float scale) {
  for_blocks<32>(a.x, a.cols, [&](const float* x, std::int64_t begin, std::int64_t count) {
    round_run<32>(x, count, a.values + begin, [scale](float v) { return fp8_value(v, scale); });
  });
}

void fp8_block_row(const QuantizeRowArgs& a, bool power_of_two) {
  constexpr std::int64_t kN = formats::kFp8Block;
  for_blocks<kN>(a.x, a.cols, [&](const float* x, std::int64_t begin, std::int64_t count) {
    float scale = formats::fp8_activation_scale(block_amax<kN>(x), power_of_two);
    a.block_scales[begin / kN] = scale;
    round_run<kN>(x, count, a.values + begin, [scale](float v) { return fp8_value(v, scale); });
  });
}

void mxfp8_row(const QuantizeRowArgs& a) {
  constexpr std::int64_t kN = formats::kMxBlock;
  for_blocks<kN>(a.x, a.cols, [&](const float* x, std::int64_t begin, std::int64_t count) {
    float amax = block_amax<kN>(x);
    if (amax == 0.0f) return zero_run(count, a.values + begin);
    std::uint8_t code = formats::mxfp8_scale(amax);
    float scale = formats::decode_e8m0(code), reciprocal = formats::reciprocal_e8m0(code);
    round_run<kN>(x, count, a.values + begin,
                  [=](float v) { return mxfp8_value(v, reciprocal, scale); });
  });
}

void nvfp4_row(const QuantizeRowArgs& a) {
  constexpr std::int64_t kN = formats::kNvfp4Block;
  float g = formats::nvfp4_encode_scale(a.static_scale);
  for_blocks<kN>(a.x, a.cols, [&](const float* x, std::int64_t begin, std::int64_t count) {
    float scale = formats::decode_e4m3(formats::nvfp4_scale(block_amax<kN>(x), g));
    if (scale == 0.0f) return zero_run(count, a.values + begin);
    float multiplier = formats::nvfp4_multiplier(scale, g);
    round_run<kN>(x, count, a.values + begin,
                  [=](float v) { return nvfp4_value(v, multiplier, scale); });
  });
}

/// As formats::amax_of(), with no symbol of its own.
float row_amax(const float* x, std::int64_t cols) {
  constexpr std::int64_t kN = 64;
  std::int32_t largest = 0;
  for_blocks<kN>(x, cols, [&](const float* block, std::int64_t, std::int64_t) {
    const std::int32_t m = std::int32_t(formats::float_bits(block_amax<kN>(block)));
    largest = m > largest ? m : largest;
  });
  return formats::bits_float(std::uint32_t(largest));
}

/// Quantises a row whose args were checked; kF32 is none of the kinds.
void run_quantize(const QuantizeRowArgs& args) {
  *args.row_scale = formats::is_static(args.kind) ? args.static_scale : 1.0f;
  switch (args.kind) {
    case ActivationQuant::kNone:
      return round_row(args);
    case ActivationQuant::kFp8Block128:
      return fp8_block_row(args, false);
    case ActivationQuant::kFp8Block128Ue8m0:
      return fp8_block_row(args, true);
    case ActivationQuant::kFp8Token:
      *args.row_scale = formats::fp8_activation_scale(row_amax(args.x, args.cols), false);
      return fp8_row(args, *args.row_scale);
    case ActivationQuant::kFp8Tensor:
      return fp8_row(args, args.static_scale);
    case ActivationQuant::kMxfp8:
      return mxfp8_row(args);
    case ActivationQuant::kNvfp4:
      return nvfp4_row(args);
    case ActivationQuant::kF32:
      return;
  }
}

}  // namespace
}  // namespace switchyard::ops
