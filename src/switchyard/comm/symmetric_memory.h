// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// One slice of memory per rank, every slice mapped by every rank of the group and laid out alike:
/// the same offset means the same thing in all of them.
class SymmetricMemory {
 public:
  /// Slices of `slice_bytes` zeroed bytes. Collective.
  /// Errors: UsageError on every rank when sizes differ or the system refuses them; PeerError.
  SymmetricMemory(Group& group, std::size_t slice_bytes);

  /// First byte of rank `rank`'s slice, on a page boundary.
  std::byte* slice(int rank) const { return memory_.bytes.data() + std::size_t(rank) * stride_; }
  /// The object at byte `offset` of rank `rank`'s slice.
  template <class T>
  T* at(int rank, std::int64_t offset) const {
    return reinterpret_cast<T*>(slice(rank) + offset);
  }
  /// Bytes of all slices.
  std::size_t total_bytes() const { return memory_.bytes.size(); }

 private:
  std::size_t stride_;
  SharedBytes memory_;
};

}  // namespace switchyard::comm
