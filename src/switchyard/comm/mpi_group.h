// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// Whether this build can form groups of MPI processes.
bool has_mpi();

/// What MpiSession::sum() reads and writes. Shapes: mine, all [count].
struct SummedFloats {
  std::vector<float> mine, all;
};

/// MPI for the life of this object: started unless the process has done so, and ended by the one
/// that started it. MPI only brings the processes together; a formed group waits in shared memory,
/// where every wait has a deadline. A wait for the other processes that ran out leaves MPI in the
/// middle of an operation: the session serves no further call, and does not end MPI, which would
/// wait for them without end. Processes that meet in different calls are told so, each of them, and
/// are served no further call either. Its calls are for one thread at a time; for the main thread
/// where the process started MPI with less than MPI_THREAD_SERIALIZED.
class MpiSession {
 public:
  /// Errors: UsageError when MPI is not built in, DeviceError when it does not start.
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// This process among those that were started together.
  int rank() const { return rank_; }
  /// Processes that were started together.
  int size() const { return size_; }
  /// Forms a group of all of them; again after an abort too. Collective.
  /// Errors: UsageError when they run on several hosts, some are in another call, or a system call
  ///         refuses the memory;
  ///         PeerError when some rank does not come in time, or did not in an earlier call.
  Group form_group(const Deadlines& deadlines);
  /// Every process's `mine`, in rank order; needs no group, so that it can tell of one's end.
  /// Collective. Errors: UsageError on all when the texts exceed 2 GiB together or some are in
  ///         another call; PeerError when a process does not come within `budget`, or did not in an
  ///         earlier call.
  std::vector<std::string> all_gather(std::string_view mine, std::chrono::milliseconds budget);
  /// all = the sum of every process's `mine`, by MPI_Iallreduce, which is asked without a pause
  /// whether it is done: what a benchmark holds the fused all-reduce against. Collective; the same
  /// count in all processes.
  /// Errors: UsageError when `all` has another size than `mine`; PeerError when a process does not
  ///         come within `budget`, or did not in an earlier call. MPI may then still touch the
  ///         floats, which are kept for it.
  void sum(const std::shared_ptr<SummedFloats>& floats, std::chrono::milliseconds budget);

 private:
  std::vector<std::string> gather(std::string_view call, std::string_view mine,
                                  std::chrono::milliseconds budget);
  void without_calls(std::vector<std::string>& texts);
  int rank_ = 0, size_ = 1;
  bool ours_ = false, broken_ = false;
  bool apart_ = false;  // in different calls: nothing is on its way, but no other call follows
};

}  // namespace switchyard::comm
