// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "switchyard/base/check.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRefusal =
    ": cannot be written; check the folder, its permissions and free space";

/// What stands at `path` may be lost: it is empty, as mktemp leaves it, or an older one of `kind`.
void require_replaceable(const std::string& path, const FileKind& kind) {
  std::error_code none;
  // A rename would replace a device file instead of writing to it.
  require(!fs::exists(path, none) || fs::is_regular_file(path, none), path,
          ": cannot be written, it is there and no regular file; choose another path");
  // It would replace a link by a file and leave what the link names as it was.
  require(!fs::is_symlink(path, none), path,
          ": cannot be written, it is a link; give the path of the file itself");
  if (!fs::exists(path, none)) return;
  // Renaming asks the folder for permission, not the file that goes.
  require(std::ofstream(path, std::ios::app).is_open(), path,
          ": cannot be written, it is there and write-protected; choose another path");
  if (fs::file_size(path, none) == 0) return;
  try {
    kind.read(path);
  } catch (const UsageError& e) {
    const std::string_view what = e.what();  // which names the path itself
    const std::size_t named = what.starts_with(path + ": ") ? path.size() + 2 : 0;
    throw UsageError(cat(path, ": is there and is no ", kind.name, " (", what.substr(named),
                         "), so it is not replaced; choose another path, or delete it first"));
  }
}

/// A new file beside `path`, never one that is there: PATH.part may be somebody's download.
/// Empty when none can be made.
std::string new_file_beside(const std::string& path) {
  for (int n = 0; n < 100; ++n) {
    std::string part = cat(path, ".part-", getpid(), n == 0 ? "" : cat("-", n));
    const int fd = ::open(part.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) ::close(fd);
    if (fd >= 0) return part;
    if (errno != EEXIST) break;
  }
  return "";
}

}  // namespace

WholeFile::WholeFile(std::string path, const FileKind& kind) : path_(std::move(path)), kind_(kind) {
  require_replaceable(path_, kind_);
  part_ = new_file_beside(path_);
  if (!part_.empty()) out_.open(part_, std::ios::binary | std::ios::trunc);
  require(out_.is_open(), path_, kRefusal);
}

WholeFile::~WholeFile() {
  if (!out_.is_open()) return;
  out_.close();
  std::remove(part_.c_str());
}

void WholeFile::commit() {
  // The work may have taken hours. Where this throws, the destructor removes what was written.
  require_replaceable(path_, kind_);
  out_.close();
  const bool written = !out_.fail() && std::rename(part_.c_str(), path_.c_str()) == 0;
  if (!written) std::remove(part_.c_str());
  require(written, path_, kRefusal);
}

}  // namespace switchyard
