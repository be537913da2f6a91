// SPDX-License-Identifier: Apache-2.0
// A group of those that are left of an aborted one. Its control block is still mapped by all of
// them: there they tell each other on whom they count, and where the new one lies.
#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "switchyard/base/check.h"
#include "switchyard/comm/control_block.h"

namespace switchyard::comm {
namespace {

constexpr const char* kPhase = "formation of a group of survivors";
constexpr std::chrono::microseconds kSlice{2000};

RankMask mask_of(std::span<const int> live) {
  RankMask out{};
  for (int r : live) out[std::size_t(r / 64)] |= std::uint64_t(1) << (r % 64);
  return out;
}

std::string text_of(const RankMask& mask) {
  std::string out;
  for (int r = 0; r < kMaxGroupRanks; ++r)
    if ((mask[std::size_t(r / 64)] >> (r % 64) & 1) != 0) out += cat(out.empty() ? "" : ",", r);
  return out;
}

void check_list(std::span<const int> live, int rank, int size) {
  require(!live.empty() && live.front() >= 0 && live.back() < size &&
              std::is_sorted(live.begin(), live.end()) &&
              std::adjacent_find(live.begin(), live.end()) == live.end(),
          kPhase, ": the list of ranks is not ascending within 0..", size - 1);
  require(std::find(live.begin(), live.end(), rank) != live.end(), kPhase, ": rank ", rank,
          " is not in its own list ", text_of(mask_of(live)));
}

std::uint32_t attempt_of(std::uint32_t word) { return word / kStates; }

/// One attempt of one rank. Its waits are ended by no abort, as the old group is aborted.
class Attempt {
 public:
  Attempt(int rank, std::uint32_t number, std::chrono::milliseconds budget)
      : rank_(rank), number_(number), start_(std::chrono::steady_clock::now()), budget_(budget) {}

  std::uint32_t word(Succession state) const { return number_ * kStates + state; }

  /// Tells the others on whom this rank counts.
  void give_list(Seat& own, const RankMask& live) const {
    own.succession.store(word(kNotYet), std::memory_order_relaxed);
    for (std::size_t i = 0; i < live.size(); ++i)  // who reads one of these sees the word above
      own.survivors[i].store(live[i], std::memory_order_release);
    publish(own.succession, word(kListGiven));
  }

  /// Returns how far rank `peer` has come when that is `wanted` or further. Errors: PeerError that
  /// names it.
  Succession until(const Seat& seat, Succession wanted, int peer) const {
    for (;;) {
      const std::uint32_t seen = seat.succession.load(std::memory_order_acquire);
      if (attempt_of(seen) == number_ && seen >= word(wanted)) return Succession(seen % kStates);
      check_attempt(seen, peer);
      const auto elapsed = std::chrono::steady_clock::now() - start_;
      if (elapsed > budget_) {
        const double s = std::chrono::duration<double>(elapsed).count();
        throw PeerError(
            cat("rank ", rank_, " waited ", std::int64_t(s * 10) / 10.0, " s for rank ", peer,
                " in ", kPhase,
                "; leave it out of the list and form the group again, or see whether it runs"),
            {rank_, peer, kPhase, s});
      }
      sleep_on(seat.succession, seen, kSlice);
    }
  }

  /// On whom rank `peer` counts, which has given its list.
  RankMask list_of(const Seat& seat, int peer) const {
    RankMask out{};
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = seat.survivors[i].load(std::memory_order_acquire);
    check_attempt(seat.succession.load(std::memory_order_relaxed), peer);
    return out;
  }

 private:
  void check_attempt(std::uint32_t seen, int peer) const {
    if (attempt_of(seen) <= number_) return;
    throw PeerError(cat("rank ", peer, " has given up attempt ", number_, " at the ", kPhase,
                        " in which rank ", rank_, " is; call again with its list"),
                    {rank_, peer, kPhase, 0});
  }

  int rank_;
  std::uint32_t number_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::milliseconds budget_;
};

using NameWords = std::array<std::uint64_t, kNameBytes / 8>;

std::string name_of(const Seat& seat) {
  NameWords words;
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = seat.name[i].load(std::memory_order_acquire);
  return std::bit_cast<std::array<char, kNameBytes>>(words).data();
}

/// On the first survivor: makes the new control block and tells where it is, or why not.
void make_control(Transport& transport, Seat& seat, int size, const Attempt& attempt) {
  auto tell = [&](const std::string& text, Succession state) {
    std::array<char, kNameBytes> name{};
    text.copy(name.data(), kNameBytes - 1);
    const auto words = std::bit_cast<NameWords>(name);
    for (std::size_t i = 0; i < words.size(); ++i)
      seat.name[i].store(words[i], std::memory_order_release);
    publish(seat.succession, attempt.word(state));
  };
  try {
    const std::size_t bytes = Group::control_bytes(size);
    const std::string name = transport.make_control(bytes);
    Group::init_control(transport.open_control(name, bytes).bytes, size);
    tell(name, kControlMade);
  } catch (const std::exception& e) {
    tell(e.what(), kMakingFailed);
  }
}

/// The attempt that follows this rank's last one, or that in which another of the list is already.
std::uint32_t next_attempt(const Seat* seats, int rank, std::span<const int> live) {
  std::uint32_t out = attempt_of(seats[rank].succession.load(std::memory_order_relaxed)) + 1;
  for (int r : live)
    out = std::max(out, attempt_of(seats[r].succession.load(std::memory_order_relaxed)));
  return out;
}

}  // namespace

Group Group::survivors(std::span<const int> live, const std::optional<Deadlines>& deadlines) {
  check_list(live, rank_, size_);
  require(!followed_, kPhase, ": rank ", rank_, " has formed one already; ask the new group");
  const Deadlines budgets = deadlines.value_or(deadlines_);
  Seat* seats = control().seats();
  Seat& own = seats[rank_];
  abort("the survivors form a new group");
  const Attempt attempt(rank_, next_attempt(seats, rank_, live), budgets.warm_up);
  const RankMask mine = mask_of(live);
  attempt.give_list(own, mine);
  for (int r : live) attempt.until(seats[r], kListGiven, r);
  for (int r : live) {
    const RankMask theirs = attempt.list_of(seats[r], r);
    require(theirs == mine, kPhase, ": the ranks differ: rank ", rank_, " counts on ",
            text_of(mine), ", rank ", r, " on ", text_of(theirs),
            "; call again with the same list on all ranks");
  }
  const int first = live.front(), size = int(live.size());
  if (rank_ == first) make_control(*transport_, own, size, attempt);
  const Succession made = attempt.until(seats[first], kControlMade, first);
  const std::string name = name_of(seats[first]);
  attempt.until(seats[first], kControlMade, first);  // the name is of this attempt
  require(made == kControlMade, kPhase, " failed: rank ", first, ": ", name);
  const int rank = int(std::find(live.begin(), live.end(), rank_) - live.begin());
  Group out(rank, size, budgets, transport_->open_control(name, control_bytes(size)),
            transport_->next());
  out.barrier(kPhase);
  if (rank_ == first) transport_->control_opened();
  followed_ = true;
  return out;
}

}  // namespace switchyard::comm
