// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// A shared-memory object of this host: a name that other processes can open, and our mapping.
class PosixMemory {
 public:
  PosixMemory() = default;
  PosixMemory(PosixMemory&& other) noexcept;
  PosixMemory& operator=(PosixMemory&& other) noexcept;
  /// Removes the name if this object made it; mappings stay.
  ~PosixMemory();

  /// A new object of `bytes` zeroed bytes, all of them reserved now, so that no later access can
  /// fail. Errors: UsageError when the system refuses.
  static PosixMemory create(std::size_t bytes);
  /// Maps an object that another process made. Errors: UsageError when the system refuses.
  static PosixMemory open(const std::string& name, std::size_t bytes);

  /// The object's name; empty once it is removed.
  const std::string& name() const { return name_; }
  /// The mapping; lives as long as somebody holds it.
  SharedBytes mapped() const { return mapping_; }
  /// Removes the name now, when every peer has mapped the object.
  void unlink();

 private:
  std::string name_;
  bool ours_ = false;
  SharedBytes mapping_;
};

/// Shared memory between the processes of one host.
std::shared_ptr<Transport> make_process_transport();

}  // namespace switchyard::comm
