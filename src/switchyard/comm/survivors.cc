// SPDX-License-Identifier: Apache-2.0
// A group of those that are left of an aborted one. Its control block is still mapped by all of
// them: there they tell each other on whom they count, and where the new one lies.
#include <algorithm>
#include <cstring>
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

/// A wait that no abort ends: the old group is aborted.
class Roll {
 public:
  Roll(int rank, std::chrono::milliseconds budget)
      : rank_(rank), start_(std::chrono::steady_clock::now()), budget_(budget) {}
  /// Returns when rank `peer` has come to `wanted`. Errors: PeerError that names it.
  void until(const Word& word, std::uint32_t wanted, int peer) const {
    for (;;) {
      const std::uint32_t seen = word.load(std::memory_order_acquire);
      if (seen >= wanted) return;
      const auto elapsed = std::chrono::steady_clock::now() - start_;
      if (elapsed > budget_) {
        const double s = std::chrono::duration<double>(elapsed).count();
        throw PeerError(
            cat("rank ", rank_, " waited ", std::int64_t(s * 10) / 10.0, " s for rank ", peer,
                " in ", kPhase, "; leave it out of the list, or see whether it runs"),
            {rank_, peer, kPhase, s});
      }
      sleep_on(word, seen, kSlice);
    }
  }

 private:
  int rank_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::milliseconds budget_;
};

/// On the first survivor: makes the new control block and tells where it is, or why not.
void make_control(Transport& transport, Seat& seat, int size) {
  auto tell = [&](const std::string& text, std::uint32_t state) {
    const std::size_t length = std::min(text.size(), kNameBytes - 1);
    std::memcpy(seat.name, text.data(), length);
    seat.name[length] = 0;
    publish(seat.succession, state);
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

}  // namespace

Group Group::survivors(std::span<const int> live) {
  check_list(live, rank_, size_);
  Seat* seats = control().seats();
  Seat& own = seats[rank_];
  require(own.succession.load(std::memory_order_relaxed) == kNotYet, kPhase, ": rank ", rank_,
          " has formed one already; ask the new group");
  abort("the survivors form a new group");
  own.survivors = mask_of(live);
  publish(own.succession, kListGiven);
  const Roll roll(rank_, deadlines_.warm_up);
  for (int r : live) roll.until(seats[r].succession, kListGiven, r);
  for (int r : live)
    require(seats[r].survivors == own.survivors, kPhase, ": the ranks differ: rank ", rank_,
            " counts on ", text_of(own.survivors), ", rank ", r, " on ",
            text_of(seats[r].survivors), "; pass the same list on all ranks");
  const int first = live.front(), size = int(live.size());
  if (rank_ == first) make_control(*transport_, own, size);
  roll.until(seats[first].succession, kControlMade, first);
  require(seats[first].succession.load(std::memory_order_acquire) == kControlMade, kPhase,
          " failed: rank ", first, ": ", seats[first].name);
  const int rank = int(std::find(live.begin(), live.end(), rank_) - live.begin());
  Group out(rank, size, deadlines_,
            transport_->open_control(seats[first].name, control_bytes(size)), transport_->next());
  out.barrier(kPhase);
  if (rank_ == first) transport_->control_opened();
  return out;
}

}  // namespace switchyard::comm
