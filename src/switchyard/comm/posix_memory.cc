// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/posix_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

/// A descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void refuse(const char* what, std::size_t bytes, int error) {
  throw UsageError(cat(what, " of ", bytes, " bytes of shared memory failed: ",
                       std::strerror(error), "; see the size of /dev/shm (df -h /dev/shm)"));
}

SharedBytes map(int fd, std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) refuse("mapping", bytes, errno);
  std::shared_ptr<void> owner(at, [bytes](void* p) { munmap(p, bytes); });
  return {std::move(owner), {static_cast<std::byte*>(at), bytes}};
}

std::string fresh_name() {
  std::uint64_t noise = 0;
  ensure(getrandom(&noise, sizeof noise, 0) == sizeof noise, "getrandom gave too little");
  return cat("/switchyard.", getpid(), ".", noise);
}

class ProcessTransport : public Transport {
 public:
  SharedBytes share(Group& group, std::size_t bytes, std::string_view phase) override {
    PosixMemory memory;
    std::string name;
    guarded(group, phase, [&] {
      if (group.rank() == 0) memory = PosixMemory::create(bytes);
    });
    name = group.all_gather(memory.name(), phase)[0];
    guarded(group, phase, [&] {
      if (group.rank() != 0) memory = PosixMemory::open(name, bytes);
    });
    memory.unlink();
    return memory.mapped();
  }

  std::string make_control(std::size_t bytes) override {
    next_control_ = PosixMemory::create(bytes);
    return next_control_.name();
  }
  SharedBytes open_control(const std::string& name, std::size_t bytes) override {
    if (next_control_.name() == name) return next_control_.mapped();
    return PosixMemory::open(name, bytes).mapped();
  }
  std::shared_ptr<Transport> next() override { return std::make_shared<ProcessTransport>(); }
  void control_opened() override { next_control_ = PosixMemory(); }

 private:
  PosixMemory next_control_;  // of the group of survivors that follows this one
};

}  // namespace

PosixMemory::PosixMemory(PosixMemory&& other) noexcept
    : name_(std::exchange(other.name_, {})),
      ours_(std::exchange(other.ours_, false)),
      mapping_(std::exchange(other.mapping_, {})) {}

PosixMemory& PosixMemory::operator=(PosixMemory&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(ours_, other.ours_);
  std::swap(mapping_, other.mapping_);
  return *this;
}

PosixMemory::~PosixMemory() { unlink(); }

PosixMemory PosixMemory::create(std::size_t bytes) {
  PosixMemory out;
  std::string name = fresh_name();
  const Descriptor fd(shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() < 0) refuse("creation", bytes, errno);
  out.name_ = std::move(name);
  out.ours_ = true;
  // Not ftruncate alone: a full /dev/shm would then kill whoever touches the page that is missing.
  if (int error = posix_fallocate(fd.get(), 0, off_t(bytes)); error != 0)
    refuse("reservation", bytes, error);
  out.mapping_ = map(fd.get(), bytes);
  return out;
}

PosixMemory PosixMemory::open(const std::string& name, std::size_t bytes) {
  PosixMemory out;
  const Descriptor fd(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() < 0) refuse("opening", bytes, errno);
  out.mapping_ = map(fd.get(), bytes);
  return out;
}

void PosixMemory::unlink() {
  if (ours_) shm_unlink(name_.c_str());
  ours_ = false;
  name_.clear();
}

std::shared_ptr<Transport> make_process_transport() { return std::make_shared<ProcessTransport>(); }

}  // namespace switchyard::comm
