// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>

namespace switchyard {

/// A file that gets its name when it is whole: written beside it as PATH.part, then renamed, so
/// that a reader never sees half of it and a failed run leaves the older one.
class WholeFile {
 public:
  /// Opens PATH.part, so that a path that cannot be written is known before the work for it.
  /// Errors:  UsageError when it cannot, or when PATH is there and a link, write-protected or
  /// no regular file.
  explicit WholeFile(std::string path);
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;
  /// Removes what was not committed.
  ~WholeFile();

  /// Where the content goes.
  std::ostream& out() { return out_; }
  /// Gives the file its name. Errors: UsageError when anything could not be written.
  void commit();

 private:
  std::string path_, part_;
  std::ofstream out_;
};

}  // namespace switchyard
