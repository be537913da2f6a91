// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/whole_file.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "switchyard/base/check.h"

namespace switchyard {
namespace {

constexpr const char* kRefusal =
    ": cannot be written; check the folder, its permissions and free space";

}  // namespace

WholeFile::WholeFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {
  std::error_code none;
  // A rename would replace a device file instead of writing to it.
  require(!std::filesystem::exists(path_, none) || std::filesystem::is_regular_file(path_, none),
          path_, ": cannot be written, it is there and no regular file; choose another path");
  // It would replace a link by a file and leave what the link names as it was.
  require(!std::filesystem::is_symlink(path_, none), path_,
          ": cannot be written, it is a link; give the path of the file itself");
  // Renaming asks the folder for permission, not the file that goes.
  require(!std::filesystem::exists(path_, none) || std::ofstream(path_, std::ios::app).is_open(),
          path_, ": cannot be written, it is there and write-protected; choose another path");
  out_.open(part_, std::ios::binary | std::ios::trunc);
  require(out_.is_open(), path_, kRefusal);
}

WholeFile::~WholeFile() {
  if (!out_.is_open()) return;
  out_.close();
  std::remove(part_.c_str());
}

void WholeFile::commit() {
  out_.close();
  const bool written = !out_.fail() && std::rename(part_.c_str(), path_.c_str()) == 0;
  if (!written) std::remove(part_.c_str());
  require(written, path_, kRefusal);
}

}  // namespace switchyard
