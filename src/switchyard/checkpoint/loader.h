// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/checkpoint/block_reader.h"
#include "switchyard/checkpoint/layer_weights.h"
#include "switchyard/checkpoint/weight_source.h"

namespace switchyard::checkpoint {

/// Begins the notice of a layer whose MLP beside the block is stored and cannot be read.
inline constexpr std::string_view kUnreadMlp = "the MLP beside the MoE block is left out: ";

/// Begins the notice of a layer whose experts carry the block's output bias: exact for routing
/// weights that sum to 1, and for those alone.
inline constexpr std::string_view kOutputBias = "the block's output bias is added by its experts: ";
/// True when one of the layer's notices begins so.
inline bool has_notice(const LayerWeights& w, std::string_view begin) {
  for (const std::string& notice : w.notices)
    if (notice.starts_with(begin)) return true;
  return false;
}

/// One MoE layer that a checkpoint declares.
struct LayerInfo {
  std::int64_t index = 0;       // MTP layers count on behind the hidden layers
  std::string block;            // tensor prefix, e.g. "model.layers.3.mlp"
  std::string format = "none";  // the layer's own final format, canonical name
  bool present = true;          // some tensor of the block exists
  bool is_mtp = false;
};

/// A layer as far as it could be read, with everything that is wrong with it.
struct LayerReading {
  LayerWeights weights;                // usable only without findings
  std::vector<ExpertSources> experts;  // empty when some expert is faulty
  std::vector<Finding> findings;
};

/// An opened checkpoint of a served family. Opening reads headers and configs only; a layer's
/// tensors are checked when the layer is asked for. Copies share the mapping; results keep it
/// alive.
class Checkpoint {
 public:
  /// Opens the folder `path`.
  /// Errors: UsageError (one line) for broken files, an unknown family or quantisation schema, and
  ///         config fields whose value is not served or that contradict each other.
  static Checkpoint open(const std::string& path);

  /// The MoE layers by index, MTP layers last; absent MTP layers are listed too.
  const std::vector<LayerInfo>& layers() const;
  /// The layer's problem as the config states it.
  /// Errors: UsageError for an index that is no MoE layer.
  const Problem& problem(std::int64_t index) const;
  /// The layer in canonical form: router and shared expert read, routed experts lazy.
  /// Errors: UsageError for an index that is no MoE layer, an absent layer, or a missing,
  /// misshaped,
  ///         mistyped or unknown tensor and bad scales (the first is named, the others counted).
  LayerWeights layer(std::int64_t index) const;
  /// The same without throwing for faulty tensors.
  LayerReading read_layer(std::int64_t index) const;

  /// config.json's model_type.
  const std::string& family() const;
  /// The quantisation schema, e.g. "none", "fp8: FP8_BLOCK_SCALES" or "modelopt: NVFP4".
  std::string schema() const;
  /// The folder.
  const std::string& path() const;
  /// What opening noticed: ignored files, conflicting declarations, undeclared MTP layers.
  const std::vector<std::string>& notices() const;
  /// Number of tensors and size of the mapped files.
  std::int64_t num_tensors() const;
  /// Units: bytes.
  std::int64_t file_bytes() const;

 private:
  struct State;
  std::size_t position(std::int64_t index) const;
  std::shared_ptr<const State> state_;
};

}  // namespace switchyard::checkpoint
