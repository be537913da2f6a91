// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/digest.h"

#include <algorithm>

#include "switchyard/base/sha256.h"
#include "switchyard/base/text.h"
#include "switchyard/checkpoint/index.h"

namespace switchyard::checkpoint {
namespace {

constexpr std::size_t kPiece = 64;

/// Start, middle and end of the bytes; all of them where they are few.
void add_pieces(std::string& out, std::span<const std::byte> bytes) {
  const std::size_t size = bytes.size(), piece = std::min(kPiece, size);
  for (std::size_t at : {std::size_t(0), (size - piece) / 2, size - piece})
    out.append(reinterpret_cast<const char*>(bytes.data()) + at, piece);
}

}  // namespace

std::string checkpoint_digest(const std::string& directory, std::span<const std::string> blocks) {
  const CheckpointFiles files = open_checkpoint_files(directory);
  std::string text = files.config.dump();
  if (files.hf_quant) text += files.hf_quant->dump();
  for (const auto& [name, tensor] : files.tensors->tensors())
    text += cat(name, ' ', to_string(tensor.type), show_shape(tensor.shape), ' ',
                tensor.bytes.size(), '\n');
  for (const std::string& block : blocks) {
    const std::string layer = block.substr(0, block.rfind('.'));
    const auto [first, last] = files.tensors->range(layer + ".");
    for (auto at = first; at != last; ++at)
      if (!at->second.bytes.empty()) add_pieces(text, at->second.bytes);
  }
  return sha256_hex(text).substr(0, 16);
}

}  // namespace switchyard::checkpoint
