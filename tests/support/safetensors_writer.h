// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/usage_error.h"

namespace switchyard::test {

/// A tensor as a file holds it.
struct RawTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// Tensors by name.
using RawTensors = std::map<std::string, RawTensor>;

/// A container around any header text: length, header, data.
std::string container(const std::string& header, const std::string& data);
/// The file of `tensors` in name order, the header padded with spaces to a multiple of `align`.
std::string safetensors_bytes(const RawTensors& tensors, std::size_t align = 8);
/// Reads a file by a parser that shares nothing with the library.
RawTensors parse_safetensors(const std::string& path);

/// F32 values as bytes.
std::string f32_bytes(const std::vector<float>& values);
/// bf16 bits as a float.
float bf16_at(const RawTensor& t, std::int64_t i);
/// F32, BF16 or F16 element as a float.
float float_at(const RawTensor& t, std::int64_t i);

/// A folder that vanishes with this object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  /// Writes a file into it and returns its path.
  std::string write(const std::string& name, const std::string& bytes) const;

 private:
  std::string path_;
};

/// A checkpoint in memory, to be damaged and written.
struct CheckpointEditor {
  nlohmann::json config;
  RawTensors tensors;

  /// One of tests/data.
  static CheckpointEditor fixture(const std::string& name);
  /// Writes config.json and model.safetensors.
  void write(const TempDir& dir) const;
  /// Writes config.json, `shards` files dealt round robin by name, and their index.
  void write_sharded(const TempDir& dir, int shards) const;
  /// Renames every tensor that starts with `from`.
  void rename_prefix(const std::string& from, const std::string& to);
};

/// tests/data/`name`.
std::string data_dir(const std::string& name);
/// The whole content of a file.
std::string slurp(const std::string& path);
}  // namespace switchyard::test
