// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/check.h"
#include "switchyard/comm/mpi_group.h"

namespace switchyard::comm {

bool has_mpi() { return false; }

MpiSession::MpiSession() {
  throw UsageError(
      "groups of MPI processes are not in this build, which found no MPI; install Open MPI "
      "(libopenmpi-dev) and build again, or run the ranks as threads");
}

MpiSession::~MpiSession() = default;

Group MpiSession::form_group(const Deadlines&) { throw InternalError("no MPI in this build"); }

std::vector<std::string> MpiSession::all_gather(std::string_view, std::chrono::milliseconds) {
  throw InternalError("no MPI in this build");
}

void MpiSession::sum(const std::shared_ptr<SummedFloats>&, std::chrono::milliseconds) {
  throw InternalError("no MPI in this build");
}

}  // namespace switchyard::comm
