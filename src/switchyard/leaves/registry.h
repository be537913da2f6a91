// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/core/eligibility.h"
#include "switchyard/core/identity.h"
#include "switchyard/leaves/leaf.h"

namespace switchyard::leaves {

/// Every format's pair of leaves in order of preference, as leaves.def lists them.
std::span<const FormatLeaves* const> all_formats();
/// Every leaf of one device in order of preference.
std::vector<const Leaf*> all_leaves(Device device);
/// Every leaf, those of `first` in front of those of the other device.
std::vector<const Leaf*> all_leaves_from(Device first);
/// Canonical names of the formats in order of preference; "none" is the unquantised one.
std::vector<std::string> format_names();
/// The tokens of all registered identities, cpu leaves first.
/// Errors: InternalError on the first call when two leaves cannot be told apart.
const IdentityVocabulary& vocabulary();
/// vocabulary().parse_query(). Errors: as that, and for a mega_moe leaf the way to ask for it.
IdentityQuery parse_leaf_query(std::string_view text);

/// The one leaf of a format on a device, or why there is none.
struct Found {
  const Leaf* leaf = nullptr;
  Eligibility verdict = Eligibility::yes();  // a no (quant_unsupported) exactly when leaf is null
};

/// Looks up the one leaf of `format` on `device`; aliases fold, so NVFP4_AWQ finds nvfp4's leaf.
/// Layer, tests, benchmarks and command ask only this.
Found find_leaf(std::string_view format, Device device);
/// The leaf of a complete identity, e.g. "switchyard.cpu.fused_moe.nvfp4"; null when there is none.
const Leaf* find_leaf_by_id(std::string_view id);
/// The canonical name of a registered format from any spelling.
/// Errors: UsageError naming the near or known formats.
std::string to_format(std::string_view name);

}  // namespace switchyard::leaves
