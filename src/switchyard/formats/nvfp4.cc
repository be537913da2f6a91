// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/nvfp4.h"

#include "switchyard/base/check.h"
#include "switchyard/formats/blocks.h"
#include "switchyard/formats/encode.h"

namespace switchyard::formats {
namespace {

template <std::int64_t N>
void quantize_row(const Nvfp4RowArgs& a) {
  for_blocks<N>(a.x, a.cols, [&](const float* block, std::int64_t begin, std::int64_t count) {
    std::uint8_t scale = nvfp4_scale(block_amax<N>(block), a.g);
    a.scales[begin / N] = scale;
    encode_e2m1_times(block, count, nvfp4_multiplier(decode_e4m3(scale), a.g), a.codes + begin / 2);
  });
}

}  // namespace

void Nvfp4RowArgs::check() const {
  require(cols >= 0 && cols % 2 == 0, "nvfp4 row of ", cols,
          " columns: two codes share a byte, so the width must be even; pad the row with zeros");
  require(block == kNvfp4Block || block == kNvfp4WideBlock, "nvfp4 block of ", block,
          " elements: one scale serves 16 or 32 elements; use one of them");
  require(g > 0 && float_bits(g) < kInfinityBits, "nvfp4 encode scale is ", g,
          ": it must be positive and finite; pass 2688 / amax of the tensor");
}

void quantize_row_nvfp4(const Nvfp4RowArgs& args) {
  args.check();
  if (args.block == kNvfp4Block) {
    quantize_row<kNvfp4Block>(args);
  } else {
    quantize_row<kNvfp4WideBlock>(args);
  }
}

}  // namespace switchyard::formats
