// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "switchyard/base/check.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/comm/posix_memory.h"

namespace switchyard::comm {
namespace {

constexpr std::size_t kText = 256;

/// What every process tells the others: its host, and rank 0 the memory's name or its trouble.
struct Hello {
  char host[kText] = {};
  char memory[kText] = {};
  char error[kText] = {};
};

void set(char (&to)[kText], std::string_view text) {
  std::memcpy(to, text.data(), std::min(text.size(), kText - 1));
}

/// Completes a collective that has begun, within the budget.
void finish(MPI_Request request, std::chrono::milliseconds budget, int rank, const char* phase) {
  constexpr useconds_t kPoll = 200;
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0; done == 0;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return;
    auto elapsed = std::chrono::steady_clock::now() - start;
    double s = std::chrono::duration<double>(elapsed).count();
    if (elapsed > budget)
      throw PeerError(cat("rank ", rank, " waited ", s, " s for the other processes in ", phase),
                      {rank, -1, phase, s});
    usleep(kPoll);
  }
}

}  // namespace

bool has_mpi() { return true; }

MpiSession::MpiSession() {
  int running = 0, granted = 0;
  MPI_Initialized(&running);
  if (running == 0) {
    ours_ = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &granted) == MPI_SUCCESS;
    if (!ours_) throw DeviceError("MPI_Init_thread failed; start with mpirun, or without MPI");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiSession::~MpiSession() {
  if (ours_) MPI_Finalize();
}

Group MpiSession::form_group(const Deadlines& deadlines) {
  constexpr const char* kPhase = "group formation";
  Hello mine;
  gethostname(mine.host, kText - 1);
  PosixMemory memory;
  if (rank_ == 0) {
    try {
      memory = PosixMemory::create(Group::control_bytes(size_));
      Group::init_control(memory.mapped().bytes, size_);
      set(mine.memory, memory.name());
    } catch (const Error& e) {
      set(mine.error, e.what());
    }
  }
  std::vector<Hello> all(std::size_t(size_), Hello{});
  MPI_Request request;
  MPI_Iallgather(&mine, sizeof(Hello), MPI_BYTE, all.data(), sizeof(Hello), MPI_BYTE,
                 MPI_COMM_WORLD, &request);
  finish(request, deadlines.warm_up, rank_, kPhase);
  require(all[0].error[0] == 0, kPhase, " failed: rank 0: ", all[0].error);
  for (int r = 1; r < size_; ++r)
    require(std::strcmp(all[0].host, all[std::size_t(r)].host) == 0, "rank 0 runs on ", all[0].host,
            ", rank ", r, " on ", all[std::size_t(r)].host,
            "; ranks of a group share the memory of one host");
  std::string error;
  if (rank_ != 0) {
    try {
      memory = PosixMemory::open(all[0].memory, Group::control_bytes(size_));
    } catch (const Error& e) {
      error = e.what();
    }
  }
  int ok = error.empty() ? 1 : 0, all_ok = 0;
  MPI_Iallreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD, &request);
  finish(request, deadlines.warm_up, rank_, kPhase);
  memory.unlink();
  require(all_ok != 0, kPhase,
          " failed: ", error.empty() ? std::string("another rank cannot map the memory") : error);
  return {rank_, size_, deadlines, memory.mapped(), make_process_transport()};
}

std::vector<std::string> MpiSession::all_gather(std::string_view mine,
                                                std::chrono::milliseconds budget) {
  constexpr const char* kPhase = "exchange of texts";
  const std::size_t ranks = std::size_t(size_);
  int length = int(mine.size());
  std::vector<int> lengths(ranks), starts(ranks);
  MPI_Request request;
  MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD, &request);
  finish(request, budget, rank_, kPhase);
  for (std::size_t r = 1; r < ranks; ++r) starts[r] = starts[r - 1] + lengths[r - 1];
  std::string all(std::size_t(starts.back() + lengths.back()), 0);
  MPI_Iallgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), starts.data(),
                  MPI_CHAR, MPI_COMM_WORLD, &request);
  finish(request, budget, rank_, kPhase);
  std::vector<std::string> out;
  for (std::size_t r = 0; r < ranks; ++r)
    out.push_back(all.substr(std::size_t(starts[r]), std::size_t(lengths[r])));
  return out;
}

}  // namespace switchyard::comm
