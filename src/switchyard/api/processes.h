// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

namespace comm {
class MpiSession;
}

/// This process's number among those that a launcher such as mpirun started together; 0 alone.
/// Joins nothing.
int launched_rank();
/// How many a launcher started together; 1 without one. Joins nothing.
int launched_processes();

/// The processes that a launcher started together with this one, joined; alone without a launcher.
///
/// Collective: every call but rank() and size(), construction and destruction included.
class Processes {
 public:
  /// Errors: UsageError when there are several and this build has no MPI; DeviceError.
  Processes();
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// This process among them.
  int rank() const { return rank_; }
  /// How many there are.
  int size() const { return size_; }
  /// How a process ended: the command's exit status, and the line that tells why.
  struct Ending {
    int status = 0;
    std::string text;
  };
  /// The last meeting: every process's ending, in rank order. A process may come here while others
  /// still are in together(): those throw its text there, come here alone, and are 0 in its list.
  /// Errors: DeviceError when one does not come in time.
  std::vector<Ending> end(const Ending& mine);
  /// Runs `work`, which may fail on some processes only: then all throw, the others a UsageError
  /// with the text of one that failed.
  template <class F>
  void together(F&& work) {
    std::exception_ptr failure;
    try {
      std::forward<F>(work)();
    } catch (...) {
      failure = std::current_exception();
    }
    settle(failure);
  }
  /// The session, for the library's own use; null alone.
  comm::MpiSession* session() { return session_.get(); }

 private:
  struct Meeting;
  void settle(const std::exception_ptr& failure);
  std::vector<Meeting> meet(const Meeting& mine);
  std::unique_ptr<comm::MpiSession> session_;
  int rank_ = 0, size_ = 1;
  bool left_ = false;  // some process has ended: there is nobody to meet
};

}  // namespace switchyard
