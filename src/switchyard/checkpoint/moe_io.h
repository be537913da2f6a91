// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/checkpoint/safetensors.h"

namespace switchyard::checkpoint {

/// Given input and expected output of one MoE block.
///
/// Shapes:  hidden_states, output [tokens, hidden] row-major; token_ids [tokens] or empty.
struct MoeIo {
  std::int64_t tokens = 0, hidden = 0;
  std::vector<float> hidden_states, output;
  std::vector<std::int32_t> token_ids;
};

/// Reads what `file` holds for checkpoint layer `layer`: `layerN.hidden_states`, `layerN.output`
/// and `layerN.token_ids`, or the same names without prefix; other tensors are ignored. Errors:
/// UsageError naming file and tensor when one is missing, misshaped (`hidden` is the layer's
///          width), of another type than F32, BF16 or F16 (ids: I64, I32), or not finite.
MoeIo read_moe_io(const SafetensorsFile& file, std::int64_t layer, std::int64_t hidden);

/// The hidden states alone, e.g. to calibrate on; the file needs nothing else.
///
/// Shapes:  [tokens, hidden] row-major.
/// Errors:  as read_moe_io().
std::vector<float> read_hidden_states(const SafetensorsFile& file, std::int64_t layer,
                                      std::int64_t hidden);

}  // namespace switchyard::checkpoint
