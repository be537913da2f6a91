// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "switchyard/base/device.h"
#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// Makes GPU `ordinal` the one that this thread's later CUDA calls are for.
/// Errors: DeviceError when there is none, or the build has no CUDA.
void use_gpu(int ordinal);

/// Bytes that are free on the current GPU. Errors: DeviceError.
std::size_t free_gpu_bytes();

/// Waits until all work queued on a stream is done. Errors: DeviceError that it failed with.
void wait_for(Stream stream);
/// Whether all work queued on a stream is done; does not wait. Errors: DeviceError that it failed
/// with.
bool is_done(Stream stream);

/// Zero-initialised words of the host that a GPU can write while it runs.
class HostWords {
 public:
  /// Errors: DeviceError when the system refuses.
  explicit HostWords(std::size_t bytes);
  ~HostWords();  // NOLINT(performance-trivially-destructible): only without CUDA
  HostWords(const HostWords&) = delete;
  HostWords& operator=(const HostWords&) = delete;
  /// As the host addresses them.
  void* host() const { return host_; }
  /// As the current GPU addresses them.
  void* device() const { return device_; }

 private:
  void* host_ = nullptr;
  void* device_ = nullptr;
};

/// A slice of GPU memory per rank, every slice addressable by every rank's GPU over NVLink or PCIe:
/// GPUs of one process by peer access, of several by CUDA IPC. No multicast. Each rank's slice lies
/// on the GPU that is current when it creates this.
class PeerMemory {
 public:
  /// Collective. Errors: UsageError on every rank when some GPU cannot reach another or the memory
  /// is refused; PeerError.
  PeerMemory(Group& group, std::size_t slice_bytes);
  /// Lets go of the peers' slices, and of the own one when all have let go of it, which is waited
  /// for until the group's deadline, of an aborted group five seconds at most. A peer that does not
  /// come may still write into the slice, which then stays allocated until the process ends.
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Rank `rank`'s slice, as this rank's GPU addresses it.
  std::byte* slice(int rank) const { return slices_[std::size_t(rank)]; }
  /// Bytes of one slice.
  std::size_t bytes() const { return bytes_; }
  /// The own GPU's ordinal.
  int gpu() const { return gpu_; }
  /// Most ranks that one GPU has; the same on all ranks.
  int ranks_per_gpu() const { return ranks_per_gpu_; }

 private:
  void open(const std::vector<std::string>& cards);
  void close_peers() noexcept;
  Word& let_go(int rank) const;
  bool all_let_go() noexcept;

  Group& group_;
  std::size_t bytes_;
  int gpu_ = 0, ranks_per_gpu_ = 1;
  SharedBytes words_;  // a line per rank, 1 when its GPU writes into no slice any more
  std::vector<std::byte*> slices_;
  std::vector<bool> opened_;  // by IPC
};

}  // namespace switchyard::comm
