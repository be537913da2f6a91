// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/layer_list.h"

#include <array>

#include "switchyard/base/check.h"

namespace switchyard::checkpoint {
namespace {

constexpr std::array<std::string_view, 6> kRoots = {
    "model.", "model.language_model.", "language_model.model.", "backbone.", "language_model.", ""};

/// The block of the layer folder `layer` ("model.layers.3."), by the first spelling that has
/// tensors.
std::string block_in(const Family& family, const TensorTable& table, const std::string& layer,
                     bool* present) {
  auto names = alternatives(family.blocks);
  for (std::string_view name : names) {
    std::string block = cat(layer, name);
    *present = table.any(block + ".");
    if (*present) return block;
  }
  return cat(layer, names.front());
}

bool holds_experts(const Family& family, const TensorTable& table, const std::string& layer) {
  bool present = false;
  std::string block = block_in(family, table, layer, &present);
  return present && table.any(block + ".experts.");
}

/// The prefix in front of "layers."; the commonest one when no layer of the list has a tensor.
std::string find_root(const Family& family, const TensorTable& table,
                      const std::vector<bool>& moe) {
  for (std::string_view root : kRoots)
    for (std::size_t l = 0; l < moe.size(); ++l) {
      bool present = false;
      if (moe[l]) block_in(family, table, cat(root, "layers.", l, "."), &present);
      if (present) return std::string(root);
    }
  for (std::string_view root : kRoots)
    if (table.any(cat(root, "layers."))) return std::string(root);
  return "model.";
}

/// Where MTP layer `i` may stand; the first place counts when none has tensors.
LayerInfo find_mtp(const Family& family, const TensorTable& table, const std::string& root,
                   std::int64_t hidden_layers, std::int64_t i) {
  LayerInfo out{
      .index = hidden_layers + i, .block = {}, .format = "none", .present = false, .is_mtp = true};
  for (const std::string& folder :
       {cat(root, "layers.", hidden_layers + i, "."), cat("mtp.layers.", i, "."),
        cat("mtp.", i, "."), cat(root, "mtp.layers.", i, "."), cat(root, "mtp.", i, ".")}) {
    std::string block = block_in(family, table, folder, &out.present);
    if (out.block.empty() || out.present) out.block = block;
    if (out.present) break;
  }
  return out;
}

void add_mtp(const Family& family, const Config& config, const TensorTable& table,
             const std::string& root, std::int64_t hidden_layers, std::vector<LayerInfo>& out,
             std::vector<std::string>& notices) {
  std::vector<bool> declared = family.mtp(config);
  for (std::size_t i = 0; i < declared.size(); ++i)
    if (declared[i]) out.push_back(find_mtp(family, table, root, hidden_layers, std::int64_t(i)));
  for (std::int64_t i = std::int64_t(declared.size());; ++i) {
    LayerInfo extra = find_mtp(family, table, root, hidden_layers, i);
    if (!extra.present || !table.any(extra.block + ".experts.")) return;
    notices.push_back(cat("block '", extra.block, "' stands behind the ", hidden_layers,
                          " hidden layers and is not declared; it is listed as an MTP layer"));
    out.push_back(std::move(extra));
  }
}

}  // namespace

std::vector<LayerInfo> list_layers(const Family& family, const Config& config,
                                   const TensorTable& table, std::vector<std::string>& notices) {
  std::vector<bool> moe = family.layers(config);
  std::string root = find_root(family, table, moe);
  std::vector<LayerInfo> out;
  for (std::size_t l = 0; l < moe.size(); ++l) {
    std::string folder = cat(root, "layers.", l, ".");
    if (moe[l]) {
      LayerInfo info{.index = std::int64_t(l),
                     .block = {},
                     .format = "none",
                     .present = false,
                     .is_mtp = false};
      info.block = block_in(family, table, folder, &info.present);
      out.push_back(std::move(info));
    } else {
      require(!holds_experts(family, table, folder), config.where(), ": layer ", l,
              " is dense by this file and the checkpoint holds experts under '", folder,
              "', which contradict each other; correct the layer pattern");
    }
  }
  add_mtp(family, config, table, root, std::int64_t(moe.size()), out, notices);
  return out;
}

}  // namespace switchyard::checkpoint
