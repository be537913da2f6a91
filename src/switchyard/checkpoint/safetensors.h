// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "switchyard/checkpoint/mapped_file.h"
#include "switchyard/checkpoint/tensor.h"

namespace switchyard::checkpoint {

/// Names in byte order, so that all tensors under one prefix are neighbours.
using TensorMap = std::map<std::string, Tensor, std::less<>>;

/// One safetensors file, mapped and validated whole; copies share the mapping.
///
/// Source:  the safetensors format description (header of at most 100,000,000 bytes).
class SafetensorsFile {
 public:
  /// Maps and validates `path`: header length, JSON, duplicate names, types, sizes, and that the
  /// tensors cover the data without hole or overlap.
  /// Errors: UsageError with file, tensor, value, limit and what to do.
  static SafetensorsFile open(const std::string& path);

  /// All tensors by name.
  const TensorMap& tensors() const { return *tensors_; }
  /// The tensor `name`, or null.
  const Tensor* find(std::string_view name) const;
  /// The header's __metadata__.
  const std::map<std::string, std::string>& metadata() const { return *metadata_; }
  /// The path it was opened by.
  const std::string& path() const { return file_->path(); }
  /// Size of the file.
  std::size_t file_bytes() const { return file_->bytes().size(); }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const TensorMap> tensors_;
  std::shared_ptr<const std::map<std::string, std::string>> metadata_;
};

/// The longest header that the format allows. Units: bytes.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

}  // namespace switchyard::checkpoint
