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
class Group;
class MpiSession;
}  // namespace comm

/// This process's number among those that a launcher such as mpirun started together; 0 alone.
/// Joins nothing.
int launched_rank();
/// How many a launcher started together; 1 without one. Joins nothing.
int launched_processes();

/// The processes that a launcher started together with this one, joined; alone without a launcher.
/// One for the program: MPI ends with it, and begins only once in a process.
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
    bool ended = true;  // false: it is still at work, in a call of its own
  };
  /// The last meeting: every process's ending, in rank order. A process may come here while others
  /// still are in another call: those throw its text there, come here alone, and get their own
  /// ending only; in its list they have not ended.
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
  /// A named value that must be the same in all processes.
  struct Agreed {
    std::string name, value;
  };
  /// Compares the processes' values in their order.
  /// Errors: UsageError on all, with both sides, when a name or value differs.
  void agree(const std::vector<Agreed>& mine);
  /// Forms a group of all; alone a group of one.
  /// Errors: as MpiSession::form_group(), and the text of a process that has failed instead.
  comm::Group form_group();
  /// The session, for the library's own use; null alone.
  comm::MpiSession* session() { return session_.get(); }

 private:
  struct Meeting;
  void settle(const std::exception_ptr& failure);
  std::vector<Meeting> meet(const Meeting& mine);
  std::vector<Meeting> meet_here(const Meeting& mine);
  std::unique_ptr<comm::MpiSession> session_;
  int rank_ = 0, size_ = 1;
  bool left_ = false;  // some process has ended: there is nobody to meet
};

}  // namespace switchyard
