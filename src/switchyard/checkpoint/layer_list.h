// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/index.h"
#include "switchyard/checkpoint/loader.h"

namespace switchyard::checkpoint {

/// The MoE layers that config and tensors name, with their blocks' prefixes; formats stay unset.
/// Undeclared MTP layers that exist are listed with a notice.
/// Errors: UsageError for a layer that is dense by the config and holds experts.
std::vector<LayerInfo> list_layers(const Family& family, const Config& config,
                                   const TensorTable& table, std::vector<std::string>& notices);

}  // namespace switchyard::checkpoint
