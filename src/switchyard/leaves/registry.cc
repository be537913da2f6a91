// SPDX-License-Identifier: Apache-2.0
#include "switchyard/leaves/registry.h"

#include <array>

#include "switchyard/base/nearest.h"

namespace switchyard::leaves {

#define SWITCHYARD_LEAF(name) const FormatLeaves& name();
#include "switchyard/leaves/leaves.def"
#undef SWITCHYARD_LEAF

namespace {

const Leaf& leaf_of(const FormatLeaves& format, Device device) {
  return device == Device::kCpu ? format.cpu : format.cuda;
}

std::string no_leaf_text(std::string_view name) {
  std::string folded = fold_format(name);
  if (folded == kMixedPrecision)
    return cat("format '", name, "' marks a whole model, not a layer; ask with each layer's own");
  std::vector<std::string> shown;
  for (const std::string& format : format_names()) shown.emplace_back(show_format(format));
  std::string near = nearest(folded, shown).empty() ? "" : suggest(folded, shown) + " ";
  return cat("format '", name, "' has no leaf; ", near, "known: ", join(shown));
}

}  // namespace

std::span<const FormatLeaves* const> all_formats() {
#define SWITCHYARD_LEAF(name) &name(),
  static const std::array kTable = {
#include "switchyard/leaves/leaves.def"
  };
#undef SWITCHYARD_LEAF
  return kTable;
}

std::vector<const Leaf*> all_leaves(Device device) {
  std::vector<const Leaf*> out;
  for (const FormatLeaves* format : all_formats()) out.push_back(&leaf_of(*format, device));
  return out;
}

std::vector<const Leaf*> all_leaves_from(Device first) {
  std::vector<const Leaf*> out = all_leaves(first);
  for (const Leaf* leaf : all_leaves(first == Device::kCpu ? Device::kCuda : Device::kCpu))
    out.push_back(leaf);
  return out;
}

std::vector<std::string> format_names() {
  std::vector<std::string> out;
  for (const FormatLeaves* format : all_formats()) out.emplace_back(format->cpu.id.quant);
  return out;
}

const IdentityVocabulary& vocabulary() {
  static const IdentityVocabulary kVocabulary = [] {
    std::vector<Identity4> ids;
    for (const Leaf* leaf : all_leaves_from(Device::kCpu)) ids.push_back(leaf->id);
    return IdentityVocabulary(std::move(ids));
  }();
  return kVocabulary;
}

IdentityQuery parse_leaf_query(std::string_view text) {
  require(text.find("mega_moe") == std::string_view::npos, "leaf query '", text,
          "': a mega_moe leaf exchanges tokens itself and is no leaf to pin; it runs where the "
          "communication strategy is fused, pin that instead");
  return vocabulary().parse_query(text);
}

Found find_leaf(std::string_view format, Device device) {
  std::string folded = fold_format(format);
  for (const FormatLeaves* candidate : all_formats())
    if (candidate->cpu.id.quant == folded) return {&leaf_of(*candidate, device)};
  return {nullptr, Eligibility::no(Reject::kQuantUnsupported, no_leaf_text(format))};
}

const Leaf* find_leaf_by_id(std::string_view id) {
  for (const Leaf* leaf : all_leaves_from(Device::kCpu))
    if (leaf->id.str() == id) return leaf;
  return nullptr;
}

std::string to_format(std::string_view name) {
  Found found = find_leaf(name, Device::kCpu);
  require(found.leaf != nullptr, found.verdict.detail());
  return std::string(found.leaf->id.quant);
}

}  // namespace switchyard::leaves
