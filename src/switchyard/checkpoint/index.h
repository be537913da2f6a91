// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/safetensors.h"

namespace switchyard::checkpoint {

/// Every tensor of a checkpoint by name, over one mapped file or many shards.
class TensorTable {
 public:
  /// A table over one file.
  explicit TensorTable(SafetensorsFile file);
  /// A table that holds exactly what the index `weight_map` lists, from the shards in `directory`.
  /// Errors: UsageError for a shard name with a separator or "..", a missing shard, or a tensor
  /// that
  ///         its shard does not hold.
  TensorTable(const std::string& directory, const nlohmann::json& weight_map,
              const std::string& index_path);

  /// All tensors in byte order of their names.
  const TensorMap& tensors() const { return *tensors_; }
  /// The tensor `name`, or null.
  const Tensor* find(std::string_view name) const;
  /// The range of tensors whose names start with `prefix`.
  std::pair<TensorMap::const_iterator, TensorMap::const_iterator> range(
      std::string_view prefix) const;
  /// True when some name starts with `prefix`.
  bool any(std::string_view prefix) const;
  /// Paths of the mapped files.
  std::vector<std::string> paths() const;
  /// Size of the mapped files together. Units: bytes.
  std::size_t file_bytes() const;
  /// Tensors that shards hold and the index does not list; they are ignored.
  std::size_t unlisted() const { return unlisted_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::shared_ptr<const TensorMap> tensors_;
  std::size_t unlisted_ = 0;
};

/// A checkpoint's folder, opened and parsed but not interpreted.
struct CheckpointFiles {
  std::string directory;
  std::shared_ptr<const TensorTable> tensors;
  nlohmann::json config;                   // config.json
  std::optional<nlohmann::json> hf_quant;  // hf_quant_config.json
  bool legacy_quantize_config = false;     // quantize_config.json (GPTQ, AWQ) stands beside it
  std::vector<std::string> notices;
};

/// Opens `directory`: config.json, and model.safetensors.index.json with its shards or, without an
/// index, model.safetensors. With an index only the index counts; stray files give one notice.
/// Errors: UsageError naming the missing or broken file.
CheckpointFiles open_checkpoint_files(const std::string& directory);

}  // namespace switchyard::checkpoint
