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
  kSeparate,            // gate and up [E, I, H] each; [E, H, I]
  kFlat,                // gate and up [E * I, H] each; [E * I, H], down's transposed
};

/// Below a block: a projection into the latent width, one out of it, and a norm in front of it.
struct LatentNames {
  std::string_view down = {}, up = {}, norm = {};
  std::string_view width = {};      // config field; absent or 0: the experts read H
  std::string_view norm_flag = {};  // config field that says whether there is a norm (default yes)
};

/// The MLP that a family runs beside its MoE block, in the layer's folder.
struct ParallelNames {
  std::string_view up = {}, down = {};  // gate rows then up rows [2 I, H]; [H, I]
  std::string_view inter = {};          // config field
};

/// One model family: tensor names below its block, config fields, and the recipes that read them.
///
/// Names list alternative spellings, "w1|gate_proj"; the alternatives of gate, up and down belong
/// together by position. An empty name means that the family has no such tensor.
struct Family {
  std::string_view model_types = {};         // config.json's model_type
  std::string_view layer_folder = "layers";  // what stands in front of the layer's index
  std::string_view blocks = "mlp";  // the folder that holds router and experts; "": the layer's own
  std::string_view owned = {};  // prefixes in the block that are the MoE's, where others share it
  std::string_view gate = "gate_proj";  // below experts.<e>. and below the shared expert
  std::string_view up = "up_proj";
  std::string_view down = "down_proj";
  std::string_view stacked_gate = {};  // only where gate and up are stacked apart
  std::string_view stacked_up = "experts.gate_up_proj";
  std::string_view stacked_down = "experts.down_proj";
  StackedOrder stacked_order = StackedOrder::kRows;
  bool stacked_by_default =
      false;  // what is reported missing when no expert tensor is there at all
  std::string_view router = "gate.weight";
  std::string_view router_scale = {};       // [H]: multiplies the router's input, with H^-0.5
  std::string_view expert_input_norm = {};  // [H]: the weight of the norm that made the block's x
  std::string_view per_expert_scale = {};
  std::string_view logit_bias = {};
  std::string_view choice_bias = {};
  bool choice_bias_rows = false;  // stored [n, E]; row 0 is the text's
  std::string_view hash_table = {};
  std::string_view shared = {};
  std::string_view shared_gate = {};
  std::string_view output_bias = {};  // [H], added once; the routing weights must sum to 1
  bool expert_bias = false;
  bool mxfp4_blocks = false;  // *_blocks and *_scales with interleaved rows when declared mxfp4
  LatentNames latent = {};
  ParallelNames parallel = {};
  std::string_view config_part = {};  // an object in the config whose fields count as the model's
  bool lists = false;                 // numbers of experts and widths may be lists by layer
  std::string_view hidden = "hidden_size";  // config fields
  std::string_view num_experts = {};
  std::string_view top_k = "num_experts_per_tok";
  std::string_view inter = "moe_intermediate_size";
  std::string_view inter_fallback = {};  // read when `inter` is absent
  /// One flag per hidden layer: whether it holds an MoE block.
  std::vector<bool> (*layers)(const Config&) = nullptr;
  /// One flag per declared MTP layer.
  std::vector<bool> (*mtp)(const Config&) = nullptr;
  /// Fills routing (E and k stand already) and routed_scaling_factor for `layer`.
  void (*routing)(const Config&, std::int64_t layer, Problem&) = nullptr;
  /// What stands between the projections.
  Activation (*activation)(const Config&, std::int64_t layer) = nullptr;
  /// The shared expert's; null: the same.
  Activation (*shared_activation)(const Config&, std::int64_t layer) = nullptr;
  /// Fills num_shared, shared_inter and shared_gate.
  void (*shared_shape)(const Config&, std::int64_t layer, Problem&) = nullptr;
};

/// The family of a model_type.
/// Errors: UsageError naming the type, the nearest known ones and all that are served.
const Family& find_family(std::string_view model_type, std::string_view where);
/// Every served model_type, in table order.
std::vector<std::string> known_families();

}  // namespace switchyard::checkpoint
