// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace switchyard {

namespace checkpoint {
class Checkpoint;
}

/// One MoE layer that a checkpoint declares.
struct LayerEntry {
  std::int64_t index = 0;
  std::string block;   // tensor prefix
  std::string format;  // canonical name
  std::int64_t hidden = 0;
  bool present = true;  // false: declared without any tensor
  bool is_mtp = false;  // a multi-token-prediction layer
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

/// The hidden states that `path` holds for checkpoint layer `layer`: `layerN.hidden_states` or
/// `hidden_states`, as fp32 rows of width `hidden`; for BuildOptions::calibration.
/// Errors:  UsageError, one line, for a broken file, or a missing or misshaped tensor.
std::vector<float> read_calibration(const std::string& path, std::int64_t layer,
                                    std::int64_t hidden);

/// What `switchyard inspect` prints, as JSON. `path` is a directory or one safetensors file.
/// Errors:  UsageError, one line.
std::string inspect_json(const std::string& path);

}  // namespace switchyard
