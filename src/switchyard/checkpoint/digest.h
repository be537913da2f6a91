// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace switchyard::checkpoint {

/// A number that tells checkpoints apart without reading them: it covers config.json and
/// hf_quant_config.json, name, type, shape and size of every tensor, and of the tensors of the
/// given blocks three pieces of 64 bytes, at the start, in the middle and at the end. So it is
/// blind to a change between those pieces.
///
/// Shapes:  blocks as LayerInfo::block; the tensors beside a block, as its layer's norms, count
/// too. Errors:  UsageError as for opening the folder.
std::string checkpoint_digest(const std::string& directory, std::span<const std::string> blocks);

}  // namespace switchyard::checkpoint
