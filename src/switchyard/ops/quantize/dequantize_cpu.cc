// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/formats/e8m0.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/formats/static_scale.h"
#include "switchyard/ops/quantize/quantize.h"
#include "switchyard/ops/quantize/quantize_math.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

/// The value of every E4M3 code; each is exact in bf16.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> out{};
    for (std::size_t code = 0; code < out.size(); ++code)
      out[code] = formats::decode_e4m3(std::uint8_t(code));
    return out;
  }();
  return kValues;
}

void fp8_values(const DecodeRowArgs& a) {
  const std::array<float, 256>& value = e4m3_values();
  for (std::int64_t i = 0; i < a.cols; ++i) a.values[i] = exact_bf16_bits(value[a.codes[i]]);
}

void mxfp8_values(const DecodeRowArgs& a) {
  const std::array<float, 256>& value = e4m3_values();
  for (std::int64_t i = 0; i < a.cols; i += formats::kMxBlock) {
    const float scale = formats::decode_e8m0(a.scales[i / formats::kMxBlock]);
    const std::int64_t end = std::min(a.cols, i + formats::kMxBlock);
    for (std::int64_t c = i; c < end; ++c) a.values[c] = bf16_bits(value[a.codes[c]] * scale);
  }
}

void nvfp4_values(const DecodeRowArgs& a) {
  const std::array<float, 256>& scales = e4m3_values();
  for (std::int64_t i = 0; i < a.cols; i += formats::kNvfp4Block) {
    const float scale = scales[a.scales[i / formats::kNvfp4Block]];
    const std::int64_t end = std::min(a.cols, i + formats::kNvfp4Block);
    for (std::int64_t c = i; c < end; ++c)
      a.values[c] = exact_bf16_bits(
          formats::decode_e2m1(std::uint8_t(a.codes[c / 2] >> (c % 2 * 4) & 15)) * scale);
  }
}

}  // namespace

void decode_row_cpu(const DecodeRowArgs& a) {
  ensure(a.row_scale != nullptr && (a.cols == 0 || (a.codes != nullptr && a.values != nullptr)),
         "decode_row_cpu: codes, values or the row's scale are null");
  *a.row_scale = formats::is_static(a.kind) ? a.static_scale : 1.0F;
  switch (a.kind) {
    case ActivationQuant::kNone:
      if (a.cols > 0) std::memcpy(a.values, a.codes, std::size_t(a.cols) * 2);
      return;
    case ActivationQuant::kFp8Block128:
    case ActivationQuant::kFp8Block128Ue8m0:
      ensure(a.cols == 0 || a.block_scales != nullptr, "decode_row_cpu: no block scales");
      if (a.cols > 0)
        std::memcpy(a.block_scales, a.scales, std::size_t(activation_scale_bytes(a.kind, a.cols)));
      return fp8_values(a);
    case ActivationQuant::kFp8Token:
      std::memcpy(a.row_scale, a.scales, 4);
      return fp8_values(a);
    case ActivationQuant::kFp8Tensor:
      return fp8_values(a);
    case ActivationQuant::kMxfp8:
      return mxfp8_values(a);
    case ActivationQuant::kNvfp4:
      return nvfp4_values(a);
    case ActivationQuant::kF32:
      break;
  }
  throw InternalError("decode_row_cpu: f32 activations are not quantised");
}

}  // namespace switchyard::ops
