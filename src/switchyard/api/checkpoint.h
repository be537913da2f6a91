// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

namespace checkpoint {
class Checkpoint;
}

/// One MoE layer that a checkpoint declares.
struct LayerEntry {
  std::int64_t index = 0;
  std::string block;    // tensor prefix
  std::string format;   // canonical name
  bool present = true;  // false: declared (a multi-token-prediction layer) without any tensor
  bool is_mtp = false;
};

/// A checkpoint directory, mapped read-only; cheap to open, weights are read when a layer is built.
class Checkpoint {
 public:
  /// Opens a directory. Errors: UsageError, one line, for anything wrong in it.
  static Checkpoint open(const std::string& path);
  Checkpoint(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// The MoE layers in order, absent ones included.
  const std::vector<LayerEntry>& layers() const;
  /// The implementation, for the library's own builders.
  const checkpoint::Checkpoint& impl() const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The values of `hidden_states` in one safetensors file, as fp32, row by row; of
/// `layerN.hidden_states` when the file holds that for layer N = `layer`, or for one layer only.
/// Errors:  UsageError, one line, for a broken file or tensors that leave the choice open.
std::vector<float> read_hidden_states(const std::string& path, std::optional<std::int64_t> layer);

/// What `switchyard inspect` prints, as JSON. `path` is a directory or one safetensors file.
/// Errors:  UsageError, one line.
std::string inspect_json(const std::string& path);

}  // namespace switchyard
