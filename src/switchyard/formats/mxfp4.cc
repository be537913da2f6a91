// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/mxfp4.h"

#include "switchyard/formats/blocks.h"
#include "switchyard/formats/encode.h"

namespace switchyard::formats {

void quantize_row_mxfp4(const float* x, std::int64_t cols, std::uint8_t* codes,
                        std::uint8_t* scales) {
  for_blocks<kMxBlock>(x, cols, [&](const float* block, std::int64_t begin, std::int64_t count) {
    float amax = block_amax<kMxBlock>(block);
    std::uint8_t scale = mxfp4_scale(amax);
    scales[begin / kMxBlock] = scale;
    encode_e2m1_times(block, count, amax == 0.0f ? 0.0f : reciprocal_e8m0(scale),
                      codes + begin / 2);
  });
}

}  // namespace switchyard::formats
