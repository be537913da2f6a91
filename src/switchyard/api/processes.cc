// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/processes.h"

#include <exception>

#include "switchyard/base/check.h"
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

std::vector<std::string> Processes::all_gather(std::string_view mine) {
  if (!session_) return {std::string(mine)};
  return session_->all_gather(mine, comm::deadlines_of(resolve::environment()).warm_up);
}

void Processes::settle(const std::exception_ptr& failure) {
  std::string mine;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    mine = *e.what() != 0 ? e.what() : "failed without a text";
  }
  const std::vector<std::string> all = all_gather(mine);
  if (failure) std::rethrow_exception(failure);
  for (std::size_t r = 0; r < all.size(); ++r) require(all[r].empty(), "rank ", r, ": ", all[r]);
}

}  // namespace switchyard
