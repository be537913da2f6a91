// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "switchyard/base/dtype.h"
#include "switchyard/base/errors.h"
#include "switchyard/formats/blocks.h"
#include "switchyard/formats/fp8_block.h"
#include "switchyard/formats/mxfp8.h"
#include "switchyard/formats/nvfp4.h"
#include "switchyard/ops/quantize/quantize.h"

namespace switchyard::ops {
namespace {

using formats::ActivationQuant;

void round_to_codes(const float* x, std::int64_t cols, std::uint8_t* codes) {
  for (std::int64_t c = 0; c < cols; ++c) {
    std::uint16_t bits = float_to_bf16(x[c]);
    memcpy(codes + 2 * c, &bits, 2);
  }
}

void fp8_blocks_to_codes(const QuantizeCodesArgs& a, const float* x, std::uint8_t* codes,
                         std::uint8_t* scales) {
  bool power_of_two = a.kind == ActivationQuant::kFp8Block128Ue8m0;
  for (std::int64_t begin = 0; begin < a.cols; begin += formats::kFp8Block, scales += 4) {
    std::int64_t left = a.cols - begin;
    float scale;
    formats::quantize_row_fp8_block(x + begin,
                                    left < formats::kFp8Block ? left : formats::kFp8Block,
                                    power_of_two, codes + begin, &scale);
    memcpy(scales, &scale, 4);
  }
}

void token_to_codes(const QuantizeCodesArgs& a, const float* x, std::uint8_t* codes,
                    std::uint8_t* scales) {
  float scale = formats::fp8_activation_scale(formats::amax_of(x, a.cols), false);
  memcpy(scales, &scale, 4);
  formats::quantize_run_fp8(x, a.cols, scale, codes);
}

void quantize_row(const QuantizeCodesArgs& a, const float* x, std::uint8_t* codes,
                  std::uint8_t* scales) {
  switch (a.kind) {
    case ActivationQuant::kNone:
      return round_to_codes(x, a.cols, codes);
    case ActivationQuant::kFp8Block128:
    case ActivationQuant::kFp8Block128Ue8m0:
      return fp8_blocks_to_codes(a, x, codes, scales);
    case ActivationQuant::kFp8Token:
      return token_to_codes(a, x, codes, scales);
    case ActivationQuant::kFp8Tensor:
      return formats::quantize_run_fp8(x, a.cols, a.static_scale, codes);
    case ActivationQuant::kMxfp8:
      return formats::quantize_row_mxfp8(x, a.cols, codes, scales);
    case ActivationQuant::kNvfp4:
      return formats::quantize_row_nvfp4({x, a.cols, formats::kNvfp4Block,
                                          formats::nvfp4_encode_scale(a.static_scale), codes,
                                          scales});
    case ActivationQuant::kF32:
      break;
  }
  throw InternalError("quantize_rows_to_codes: f32 activations are not quantised");
}

}  // namespace

void quantize_rows_to_codes(const QuantizeCodesArgs& args) {
  args.check();
  std::int64_t code_bytes = activation_code_bytes(args.kind, args.cols);
  std::int64_t scale_bytes = activation_scale_bytes(args.kind, args.cols);
  for (std::int64_t r = 0; r < args.rows; ++r)
    quantize_row(args, args.x + r * args.cols, args.codes + r * code_bytes,
                 args.scales + r * scale_bytes);
}

}  // namespace switchyard::ops
