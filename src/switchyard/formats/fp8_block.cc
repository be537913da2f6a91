// SPDX-License-Identifier: Apache-2.0
#include "switchyard/formats/fp8_block.h"

#include "switchyard/formats/blocks.h"
#include "switchyard/formats/encode.h"

namespace switchyard::formats {

void quantize_run_fp8(const float* x, std::int64_t count, float scale, std::uint8_t* codes) {
  encode_e4m3_over(x, count, scale, codes);
}

void quantize_row_fp8_block(const float* x, std::int64_t cols, bool power_of_two,
                            std::uint8_t* codes, float* scales) {
  for_blocks<kFp8Block>(x, cols, [&](const float* block, std::int64_t begin, std::int64_t count) {
    float scale = fp8_activation_scale(block_amax<kFp8Block>(block), power_of_two);
    scales[begin / kFp8Block] = scale;
    encode_e4m3_over(block, count, scale, codes + begin);
  });
}

}  // namespace switchyard::formats
