// SPDX-License-Identifier: Apache-2.0
#include "switchyard/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/base/stands_at.h"

namespace switchyard::checkpoint {
namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::size_t checked_size(int fd, const std::string& path) {
  struct stat info {};
  require(::fstat(fd, &info) == 0, path, ": cannot be examined (", std::strerror(errno), ")");
  require(!S_ISDIR(info.st_mode), path,
          ": is a directory where a file is needed; name the file inside it");
  require(S_ISREG(info.st_mode), path, ": is not a regular file; give a file that can be mapped");
  return std::size_t(info.st_size);
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must fail below, not hang here.
  Descriptor d{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  const int error = errno;
  if (d.fd < 0) stands_at(path);  // which has the better word for a link that leads nowhere
  require(d.fd >= 0, path, ": cannot be opened (", std::strerror(error),
          "); check the path and its permissions");
  std::size_t size = checked_size(d.fd, path);
  std::span<const std::byte> bytes;
  if (size > 0) {
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, d.fd, 0);
    require(base != MAP_FAILED, path, ": ", size, " bytes cannot be mapped (", std::strerror(errno),
            ")");
    bytes = {static_cast<const std::byte*>(base), size};
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string read_text_file(const std::string& path, std::size_t max_bytes) {
  auto file = MappedFile::open(path);
  require(file->bytes().size() <= max_bytes, path, ": holds ", file->bytes().size(),
          " bytes, the limit for such a file is ", max_bytes,
          "; it is probably not what its name says");
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

}  // namespace switchyard::checkpoint
