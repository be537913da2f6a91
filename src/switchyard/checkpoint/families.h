// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/config.h"
#include "switchyard/core/problem.h"

namespace switchyard::checkpoint {

/// How a family stacks all experts in one tensor; decided by the family, never guessed from a
/// shape.
enum class StackedOrder : std::uint8_t {
  kRows,                // [E, 2I, H] gate rows then up rows; [E, H, I]
  kColumns,             // [E, H, 2I] gate columns then up columns; [E, I, H]
  kInterleavedColumns,  // [E, H, 2I] even columns gate, odd columns up; [E, I, H]
};

/// One model family: tensor names below its block, config fields, and the recipes that read them.
///
/// Names list alternative spellings, "w1|gate_proj"; the alternatives of gate, up and down belong
/// together by position. An empty name means that the family has no such tensor.
struct Family {
  std::string_view model_types = {};    // config.json's model_type
  std::string_view blocks = "mlp";      // the layer's folder that holds router and experts
  std::string_view gate = "gate_proj";  // below experts.<e>. and below the shared expert
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view stacked_up = "experts.gate_up_proj";
  std::string_view stacked_down = "experts.down_proj";
  StackedOrder stacked_order = StackedOrder::kRows;
  bool stacked_by_default =
      false;  // what is reported missing when no expert tensor is there at all
  std::string_view router = "gate.weight";
  std::string_view logit_bias = {};
  std::string_view choice_bias = {};
  std::string_view hash_table = {};
  std::string_view shared = {};
  std::string_view shared_gate = {};
  bool expert_bias = false;
  bool mxfp4_blocks = false;  // *_blocks and *_scales with interleaved rows when declared mxfp4
  std::string_view num_experts = {};  // config fields
  std::string_view top_k = "num_experts_per_tok";
  std::string_view inter = "moe_intermediate_size";
  /// One flag per hidden layer: whether it holds an MoE block.
  std::vector<bool> (*layers)(const Config&) = nullptr;
  /// One flag per declared MTP layer.
  std::vector<bool> (*mtp)(const Config&) = nullptr;
  /// Fills routing (E and k stand already) and routed_scaling_factor for `layer`.
  void (*routing)(const Config&, std::int64_t layer, Problem&) = nullptr;
  /// What stands between the projections.
  Activation (*activation)(const Config&) = nullptr;
  /// Fills num_shared, shared_inter and shared_gate.
  void (*shared_shape)(const Config&, Problem&) = nullptr;
};

/// The family of a model_type.
/// Errors: UsageError naming the type, the nearest known ones and all that are served.
const Family& find_family(std::string_view model_type, std::string_view where);
/// Every served model_type, in table order.
std::vector<std::string> family_names();

}  // namespace switchyard::checkpoint
