// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace switchyard::checkpoint {

/// A whole file mapped read-only for as long as this object lives; may be of 0 bytes.
class MappedFile {
 public:
  /// Maps `path`.
  /// Errors: UsageError when it is missing, a directory, no regular file, or unreadable.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  /// Unmaps.
  ~MappedFile();
  /// A mapping has one owner; share it by pointer.
  MappedFile(const MappedFile&) = delete;
  /// A mapping has one owner; share it by pointer.
  MappedFile& operator=(const MappedFile&) = delete;

  /// The file's content.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// The path it was opened by.
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

/// Reads a small text file (JSON) whole.
/// Errors: UsageError as for MappedFile::open, and when it holds more than `max_bytes`.
std::string read_text_file(const std::string& path, std::size_t max_bytes);

}  // namespace switchyard::checkpoint
