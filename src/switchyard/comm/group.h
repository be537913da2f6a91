// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/comm/wait.h"
#include "switchyard/core/environment.h"

namespace switchyard::comm {

/// Most ranks of one group.
inline constexpr int kMaxGroupRanks = 256;

/// The deadlines that the environment's switches state.
Deadlines deadlines_of(const Environment& env);

class Transport;
struct Control;

/// Memory that every rank of a group maps; given back when the last holder lets go.
struct SharedBytes {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
};

/// One rank's seat in a fixed team of ranks on one host: threads of a process, or processes.
///
/// Every call below is collective unless it says otherwise: all ranks make the same calls in the
/// same order. Every wait has a deadline on the monotonic clock. A rank that gives up sets the
/// group's abort cell, which ends the waits of all others; an aborted group stays so, and the ranks
/// may form a new one.
/// Errors: PeerError from every wait that ends without its peer, and from every call on an aborted
///         group.
class Group {
 public:
  Group(Group&&) noexcept = default;
  Group& operator=(Group&&) noexcept = default;

  /// This rank, in [0, size()).
  int rank() const { return rank_; }
  /// Ranks of the group.
  int size() const { return size_; }
  /// The budgets that its waits have.
  const Deadlines& deadlines() const { return deadlines_; }

  /// Returns when every rank has called it.
  void barrier(std::string_view phase);
  /// Every rank's `mine`, in rank order; lengths may differ.
  std::vector<std::string> all_gather(std::string_view mine, std::string_view phase);
  /// Whether every rank says yes.
  bool vote(bool yes, std::string_view phase);
  /// Throws on every rank when any rank passes a nonempty `error`, with the texts of those that
  /// did: what several say stands there once, and of many different ones the first. Errors:
  /// UsageError.
  void settle(std::string_view error, std::string_view phase);
  /// Zeroed memory of `bytes` bytes, page-aligned, that all ranks share.
  /// Errors: UsageError on every rank when sizes differ or the system refuses them.
  SharedBytes share(std::size_t bytes, std::string_view phase);

  /// Sets the abort cell; the first one's text is what the others report. Not collective.
  void abort(std::string_view why) noexcept;
  /// Whether some rank has given up. Not collective.
  bool aborted() const;
  /// In front of a call: what the ranks wrote for one that was given up would pass for another's.
  /// Not collective. Errors: PeerError when some rank has given up.
  void check_alive(std::string_view phase);

  /// Forms a new group of the ranks `live` of this one, whose other ranks are gone: rank live[i]
  /// becomes rank i. Collective among them; ends what still waits in this one. A rank whose call
  /// failed may call again, with another list; one that has formed a group asks that one. The
  /// deadlines are those of the call and of the new group; left out, this group's.
  ///
  /// Shapes:  live ascending, this rank among them.
  /// Errors:  UsageError when the list is no such list, the ranks pass different ones (both sides
  ///          are printed) or the memory is refused; PeerError that names a rank of the list which
  ///          does not come, or has given this attempt up.
  Group survivors(std::span<const int> live, const std::optional<Deadlines>& deadlines = {});

  /// The `rank`th seat at `control`, which init_control() prepared; for the makers of groups.
  Group(int rank, int size, const Deadlines& deadlines, SharedBytes control,
        std::shared_ptr<Transport> transport);
  /// Bytes of the control block of a group of `size` ranks.
  static std::size_t control_bytes(int size);
  /// Prepares zeroed memory as a control block; once, before any rank takes its seat.
  static void init_control(std::span<std::byte> bytes, int size);

 private:
  friend class Patience;
  Control& control() const;
  int rank_, size_;
  Deadlines deadlines_;
  std::uint32_t sequence_ = 0;  // of barriers
  bool followed_ = false;       // by a group of survivors
  SharedBytes control_;
  std::shared_ptr<Transport> transport_;
};

/// How the ranks of a group come by common memory.
class Transport {
 public:
  virtual ~Transport() = default;
  /// As Group::share(), sizes already compared.
  virtual SharedBytes share(Group& group, std::size_t bytes, std::string_view phase) = 0;

  // For a group of survivors, without any wait:

  /// Makes zeroed memory for its control block; a name by which the others open it.
  /// Errors: UsageError when the system refuses.
  virtual std::string make_control(std::size_t bytes) = 0;
  /// Maps that memory, on the rank that made it too.
  virtual SharedBytes open_control(const std::string& name, std::size_t bytes) = 0;
  /// The transport of the new group; after make_control() on the first rank.
  virtual std::shared_ptr<Transport> next() = 0;
  /// Every rank has opened it.
  virtual void control_opened() = 0;
};

/// One wait of one rank: knows its deadline, what it waits for and whom it would name.
class Patience {
 public:
  /// A wait in `phase` that may last `budget`, counted from here.
  Patience(Group& group, std::string_view phase, std::chrono::milliseconds budget)
      : group_(&group), phase_(phase), budget_(budget), start_(std::chrono::steady_clock::now()) {}

  /// Returns when `word`, last seen as `seen`, may have changed; polls for a few microseconds, then
  /// sleeps.
  /// Errors: PeerError that names `peer` when the deadline is over (it then aborts the group), or
  ///         the rank that gave up when the group was aborted.
  void pause(const Word& word, std::uint32_t seen, int peer);
  /// Returns when `word` has reached `wanted`. Errors: as pause().
  void until(const Word& word, std::uint32_t wanted, int peer);

 private:
  friend class Group;
  [[noreturn]] void give_up(int peer, double elapsed_s);
  void check_abort(double elapsed_s) const;
  Group* group_;
  std::string_view phase_;
  std::chrono::milliseconds budget_;
  std::chrono::steady_clock::time_point start_;
};

/// Groups of `ranks` threads: element r is rank r's seat, to be moved into its thread.
/// Errors: UsageError unless 1 <= ranks <= kMaxGroupRanks.
std::vector<Group> make_thread_groups(int ranks, const Deadlines& deadlines);

/// Runs `work`, which may fail on some ranks only, and then settles: either it was done on every
/// rank, or every rank throws with the texts of those that failed.
template <class F>
void guarded(Group& group, std::string_view phase, F&& work) {
  std::string error;
  try {
    std::forward<F>(work)();
  } catch (const std::exception& e) {
    error = e.what();
    if (error.empty()) error = "failed without a text";
  }
  group.settle(error, phase);
}

/// Aborts the group with the text of the exception that is being handled. Not collective.
void abort_for_current(Group& group) noexcept;

/// Runs `work`; whatever it throws, of this library or not, aborts the group first. Not collective.
template <class F>
decltype(auto) or_abort(Group& group, F&& work) {
  try {
    return std::forward<F>(work)();
  } catch (...) {
    abort_for_current(group);
    throw;
  }
}

/// A named value that must be the same on all ranks.
struct Agreed {
  std::string name;
  std::string value;
};

/// Compares the ranks' values name by name, e.g. fingerprint, leaf of each layer, slot layout,
/// capacity. Errors: UsageError on every rank with both sides, when a name or value differs.
void agree(Group& group, std::span<const Agreed> mine, std::string_view phase);

}  // namespace switchyard::comm
