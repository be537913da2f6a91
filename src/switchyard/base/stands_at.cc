// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/stands_at.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "switchyard/base/check.h"

namespace switchyard {

bool stands_at(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 || stands_despite(errno, path)) return true;
  std::error_code none;
  const std::filesystem::path target = std::filesystem::read_symlink(path, none);
  require(target.empty(), path, ": is a link to ", target.string(),
          ", where nothing stands; fetch that file, or mend the link");
  return false;
}

bool stands_despite(int error, const std::string& path) {
  require(error == ENOENT, path, ": cannot be looked at (", std::strerror(error),
          "); check each folder of the path and its permissions");
  return false;
}

}  // namespace switchyard
