// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/config.h"

/// Readings that several recipes share.
namespace switchyard::checkpoint::recipes {

/// More layers than this are a damaged config.
inline constexpr std::int64_t kMaxLayers = 65536;
/// The same for MTP layers.
inline constexpr std::int64_t kMaxMtp = 1024;

/// num_hidden_layers.
std::int64_t num_layers(const Config& c);
/// The list `field` of one word per hidden layer, each one of `served` ("a|b"); nothing when
/// absent.
/// Errors: UsageError for another length or word.
std::vector<std::string> layer_words(const Config& c, std::string_view field,
                                     std::string_view served);

}  // namespace switchyard::checkpoint::recipes
