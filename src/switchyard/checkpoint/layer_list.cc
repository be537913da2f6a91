// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/layer_list.h"

#include <array>

#include "switchyard/base/check.h"
#include "switchyard/base/nearest.h"

namespace switchyard::checkpoint {
namespace {

constexpr std::array<std::string_view, 7> kRoots = {
    "model.",    "model.language_model.", "language_model.model.",
    "backbone.", "language_model.",       "transformer.",
    ""};

/// Looks blocks up by the family's names.
class BlockFinder {
 public:
  BlockFinder(const Family& family, const TensorTable& table) : family_(family), table_(table) {}

  /// True when some tensor of the family stands in `block`.
  bool present(const std::string& block) const {
    for (std::string_view prefix : alternatives(family_.owned))
      if (table_.any(cat(block, ".", prefix))) return true;
    return false;
  }

  /// The block of the layer folder `layer` ("model.layers.3."), by the first spelling that has
  /// tensors.
  std::string block_in(std::string layer, bool* found) const {
    layer.pop_back();
    auto path = [&](std::string_view name) { return name.empty() ? layer : cat(layer, ".", name); };
    auto names = alternatives(family_.blocks);
    for (std::string_view name : names) {
      *found = present(path(name));
      if (*found) return path(name);
    }
    return path(names.front());
  }

  /// True when the layer's block holds routed experts in any spelling.
  bool holds_experts(const std::string& layer) const {
    bool found = false;
    std::string block = block_in(layer, &found);
    return found && holds_experts_at(block);
  }

  /// The same for a block.
  bool holds_experts_at(const std::string& block) const {
    if (table_.any(block + ".experts.")) return true;
    for (std::string_view names : {family_.stacked_up, family_.stacked_down})
      for (std::string_view name : alternatives(names))
        if (table_.any(cat(block, ".", name))) return true;
    return false;
  }

  /// The prefix in front of the layer's index; the commonest one when no layer of the list has a
  /// tensor.
  std::string find_root(const std::vector<bool>& moe) const {
    auto folders = alternatives(family_.layer_folder);
    for (std::string_view root : kRoots)
      for (std::string_view folder : folders)
        for (std::size_t l = 0; l < moe.size(); ++l) {
          bool found = false;
          if (moe[l]) block_in(cat(root, folder, ".", l, "."), &found);
          if (found) return cat(root, folder, ".");
        }
    for (std::string_view root : kRoots)
      for (std::string_view folder : folders)
        if (table_.any(cat(root, folder, "."))) return cat(root, folder, ".");
    return cat("model.", folders.front(), ".");
  }

  /// Where MTP layer `i` may stand; the first place counts when none has tensors.
  LayerInfo find_mtp(const std::string& root, std::int64_t hidden_layers, std::int64_t i) const {
    LayerInfo out{.index = hidden_layers + i,
                  .block = {},
                  .format = "none",
                  .present = false,
                  .is_mtp = true};
    std::string model = root.substr(0, root.find("layers."));
    for (const std::string& folder :
         {cat(root, hidden_layers + i, "."), cat("mtp.layers.", i, "."), cat("mtp.", i, "."),
          cat(model, "mtp.layers.", i, "."), cat(model, "mtp.", i, ".")}) {
      std::string block = block_in(folder, &out.present);
      if (out.block.empty() || out.present) out.block = block;
      if (out.present) break;
    }
    return out;
  }

 private:
  const Family& family_;
  const TensorTable& table_;
};

/// The declared MTP layers, and those that exist undeclared, which are announced.
std::vector<LayerInfo> list_mtp(const BlockFinder& finder, const std::vector<bool>& declared,
                                const std::string& root, std::int64_t hidden_layers,
                                std::vector<std::string>& notices) {
  std::vector<LayerInfo> out;
  for (std::size_t i = 0; i < declared.size(); ++i)
    if (declared[i]) out.push_back(finder.find_mtp(root, hidden_layers, std::int64_t(i)));
  for (std::int64_t i = std::int64_t(declared.size());; ++i) {
    LayerInfo extra = finder.find_mtp(root, hidden_layers, i);
    if (!extra.present || !finder.holds_experts_at(extra.block)) return out;
    notices.push_back(cat("block '", extra.block, "' stands behind the ", hidden_layers,
                          " hidden layers and is not declared; it is listed as an MTP layer"));
    out.push_back(std::move(extra));
  }
}

}  // namespace

std::vector<LayerInfo> list_layers(const Family& family, const Config& config,
                                   const TensorTable& table, std::vector<std::string>& notices) {
  const BlockFinder finder(family, table);
  std::vector<bool> moe = family.layers(config);
  std::string root = finder.find_root(moe);
  std::vector<LayerInfo> out;
  for (std::size_t l = 0; l < moe.size(); ++l) {
    std::string folder = cat(root, l, ".");
    if (moe[l]) {
      LayerInfo info{.index = std::int64_t(l),
                     .block = {},
                     .format = "none",
                     .present = false,
                     .is_mtp = false};
      info.block = finder.block_in(folder, &info.present);
      out.push_back(std::move(info));
    } else {
      require(!finder.holds_experts(folder), config.where(), ": layer ", l,
              " is dense by this file and the checkpoint holds experts under '", folder,
              "', which contradict each other; correct the layer pattern");
    }
  }
  for (LayerInfo& info :
       list_mtp(finder, family.mtp(config), root, std::int64_t(moe.size()), notices))
    out.push_back(std::move(info));
  if (std::string absent = absent_text(out); !absent.empty()) notices.push_back(std::move(absent));
  return out;
}

std::string absent_text(const std::vector<LayerInfo>& layers) {
  std::vector<std::string> runs;  // of neighbours in the list
  std::int64_t count = 0;
  std::int64_t first = -1;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerInfo& l = layers[i];
    if (l.present || l.is_mtp) {
      first = -1;
      continue;
    }
    ++count;
    if (first < 0) {
      first = l.index;
      runs.push_back(cat(first));
    } else {
      runs.back() = cat(first, " .. ", l.index);
    }
  }
  if (count == 0) return "";
  return cat("MoE layer", count == 1 ? " " : "s ", join(runs, ", "), count == 1 ? " is" : " are",
             " declared and the checkpoint holds no tensor of ", count == 1 ? "it" : "them");
}

}  // namespace switchyard::checkpoint
