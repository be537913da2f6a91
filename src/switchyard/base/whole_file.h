// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <functional>
#include <string>
#include <string_view>

namespace switchyard {

/// A kind of file that is written again and again: a newer one may take the place of an older one,
/// and of nothing else.
struct FileKind {
  std::string_view name;                         // as in "is no NAME"
  std::function<void(const std::string&)> read;  // UsageError unless the path holds one
};

/// A file that gets its name when it is whole: written beside it under a name of its own, then
/// renamed, so that a reader never sees half of it and a failed run leaves the older one.
class WholeFile {
 public:
  /// Opens PATH.part-N, so that a path that cannot be written is known before the work for it.
  /// Errors:  UsageError when it cannot, or when PATH is there and a link, write-protected, no
  /// regular file, or neither empty nor of `kind`.
  WholeFile(std::string path, const FileKind& kind);
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  /// Removes what was not committed.
  ~WholeFile();

  /// Where the content goes.
  std::ostream& out() { return out_; }
  /// Gives the file its name. Errors: UsageError when anything could not be written, or when what
  /// stands at PATH by then may not be replaced.
  void commit();

 private:
  std::string path_, part_;
  FileKind kind_;
  std::ofstream out_;
};

}  // namespace switchyard
