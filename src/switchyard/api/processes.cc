// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/processes.h"

#include <exception>

#include "switchyard/base/check.h"
#include "switchyard/base/text.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/resolve/probe.h"

namespace switchyard {

int launched_rank() { return resolve::launched().rank; }
int launched_processes() { return resolve::launched().processes; }

Processes::Processes() {
  if (launched_processes() == 1) return;
  session_ = std::make_unique<comm::MpiSession>();
  rank_ = session_->rank();
  size_ = session_->size();
}

Processes::~Processes() = default;

/// What a process brings to a meeting: whether it is its last one, and how it fares.
struct Processes::Meeting {
  bool last = false;
  Ending ending;
};

std::vector<Processes::Meeting> Processes::meet(const Meeting& mine) {
  if (!session_) return {mine};
  const std::string text = cat(mine.last ? 1 : 0, ' ', mine.ending.status, ' ', mine.ending.text);
  std::vector<Meeting> out;
  for (const std::string& theirs :
       session_->all_gather(text, comm::deadlines_of(resolve::environment()).warm_up)) {
    const std::size_t behind = theirs.find(' ', 2);
    ensure(behind != std::string::npos, "a meeting of processes: a text without its parts");
    out.push_back(
        {theirs[0] == '1', {std::stoi(theirs.substr(2, behind - 2)), theirs.substr(behind + 1)}});
    left_ |= out.back().last;
  }
  return out;
}

std::vector<Processes::Ending> Processes::end(const Ending& mine) {
  if (left_) return {mine};
  std::vector<Ending> out;
  for (Meeting& m : meet({.last = true, .ending = mine}))
    out.push_back(m.last ? std::move(m.ending) : Ending());
  return out;
}

void Processes::settle(const std::exception_ptr& failure) {
  Meeting mine;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    mine.ending.text = *e.what() != 0 ? e.what() : "failed without a text";
  }
  const std::vector<Meeting> all = meet(mine);
  if (failure) std::rethrow_exception(failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::string& text = all[r].ending.text;
    require(text.empty(), "rank ", r, ": ", text);
    require(!all[r].last, "rank ", r, " has ended where rank ", rank_,
            " goes on; start all processes with the same words");
  }
}

}  // namespace switchyard
