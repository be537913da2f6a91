// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "switchyard/checkpoint/families.h"
#include "switchyard/checkpoint/index.h"
#include "switchyard/checkpoint/loader.h"

namespace switchyard::checkpoint {

/// The MoE layers that config and tensors name, with their blocks' prefixes; formats stay unset.
/// Undeclared MTP layers that exist are listed with a notice; absent layers that are no MTP layers
/// are one, too.
/// Errors: UsageError for a layer that is dense by the config and holds experts.
std::vector<LayerInfo> list_layers(const Family& family, const Config& config,
                                   const TensorTable& table, std::vector<std::string>& notices);

/// "MoE layers 1 .. 3, 7 are declared and the checkpoint holds no tensor of them", of those that
/// are no MTP layers; empty when all are present.
std::string absent_text(const std::vector<LayerInfo>& layers);

}  // namespace switchyard::checkpoint
