// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// Notices legal scales that silence an expert: global scales of 0, and static input scales so
/// large that common activations are quantised to 0. The first of each kind is named, the rest
/// counted.
void note_scales(const std::vector<ExpertSources>& experts, std::vector<std::string>& notices);

/// "the largest scale is 1.7e+38, of expert 3, tensor 'NAME'"; empty without block scales.
std::string largest_scale_text(const std::vector<ExpertSources>& experts);

}  // namespace switchyard::checkpoint
