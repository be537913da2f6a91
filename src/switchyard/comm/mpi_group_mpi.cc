// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "switchyard/base/check.h"
#include "switchyard/comm/agreement.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/comm/posix_memory.h"

namespace switchyard::comm {
namespace {

constexpr std::string_view kFormation = "group formation", kTexts = "exchange of texts",
                           kSum = "a sum of floats";

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

/// What every process tells the others: its host, and rank 0 the memory's name or its trouble.
struct Hello {
  std::string host, memory, error;

  std::string text() const { return cat(host, '\n', memory, '\n', error); }
  static Hello of(const std::string& text) {
    const std::size_t host = text.find('\n'), memory = text.find('\n', host + 1);
    ensure(memory != std::string::npos, "a greeting of a process without its parts");
    return {text.substr(0, host), text.substr(host + 1, memory - host - 1),
            text.substr(memory + 1)};
  }
};

/// A collective that is under way, and all that MPI reads and writes meanwhile.
struct GatheringLengths {
  MPI_Request request;
  std::int64_t mine = 0;
  std::vector<std::int64_t> all;
};
struct GatheringTexts {
  MPI_Request request;
  std::string mine;
  std::vector<int> lengths, starts;
  std::string all;
};
struct Summing {
  MPI_Request request;
  std::shared_ptr<SummedFloats> floats;
};

/// Completes a collective that has begun, within the budget; else it is left to MPI for good, which
/// may still write there, and `broken` is set. Between looks it sleeps for `pause`; 0 where the
/// time is measured.
template <class Collective>
void finish(std::unique_ptr<Collective>& call, std::chrono::milliseconds budget, int rank,
            std::string_view phase, bool& broken, useconds_t pause = 200) {
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0; done == 0;) {
    MPI_Test(&call->request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return;
    auto elapsed = std::chrono::steady_clock::now() - start;
    double s = std::chrono::duration<double>(elapsed).count();
    if (elapsed > budget) {
      static_cast<void>(call.release());
      broken = true;
      throw PeerError(cat("rank ", rank, " waited ", s, " s for the other processes in ", phase,
                          "; see whether they run, and start all again"),
                      {rank, -1, std::string(phase), s});
    }
    if (pause > 0) usleep(pause);
  }
}

/// Errors: PeerError when MPI stands in the middle of a collective; UsageError on a thread that MPI
/// does not serve.
void check_usable(bool broken, int rank, std::string_view phase) {
  if (broken)
    throw PeerError(cat("rank ", rank, " cannot use MPI in ", phase,
                        ": the other processes did not come to an earlier call, or came to "
                        "another; start all again"),
                    {rank, -1, std::string(phase), 0});
  int level = 0, is_main = 0;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&is_main);
  require(level >= MPI_THREAD_SERIALIZED || is_main != 0, phase,
          " on another thread than the main one, but MPI was started for that one alone; start it "
          "with MPI_THREAD_SERIALIZED");
}

}  // namespace

bool has_mpi() { return true; }

MpiSession::MpiSession() {
  int running = 0, granted = 0, ended = 0;
  MPI_Finalized(&ended);
  require(ended == 0,
          "MPI has ended, and begins only once in a process; keep the first Processes (or "
          "session) as long as there are ranks");
  MPI_Initialized(&running);
  if (running == 0) {
    ours_ = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &granted) == MPI_SUCCESS;
    if (!ours_) throw DeviceError("MPI_Init_thread failed; start with mpirun, or without MPI");
    if (granted < MPI_THREAD_SERIALIZED) {
      MPI_Finalize();
      throw DeviceError(cat("MPI grants thread level ", granted,
                            ", less than MPI_THREAD_SERIALIZED (", MPI_THREAD_SERIALIZED,
                            "); use a build of MPI with threads"));
    }
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiSession::~MpiSession() {
  if (ours_ && !broken_) MPI_Finalize();
}

Group MpiSession::form_group(const Deadlines& deadlines) {
  Hello mine{host_name(), "", ""};
  PosixMemory memory;
  if (rank_ == 0) {
    try {
      memory = PosixMemory::create(Group::control_bytes(size_));
      Group::init_control(memory.mapped().bytes, size_);
      mine.memory = memory.name();
    } catch (const Error& e) {
      mine.error = e.what();
    }
  }
  std::vector<Hello> all;
  for (const std::string& text : gather(kFormation, mine.text(), deadlines.warm_up))
    all.push_back(Hello::of(text));
  require(all[0].error.empty(), kFormation, " failed: rank 0: ", all[0].error);
  for (std::size_t r = 1; r < all.size(); ++r)
    require(all[0].host == all[r].host, "rank 0 runs on ", all[0].host, ", rank ", r, " on ",
            all[r].host, "; ranks of a group share the memory of one host");
  std::string error;
  if (rank_ != 0) {
    try {
      memory = PosixMemory::open(all[0].memory, Group::control_bytes(size_));
    } catch (const Error& e) {
      error = e.what();
    }
  }
  const std::string trouble = joined_errors(gather(kFormation, error, deadlines.warm_up));
  memory.unlink();
  require(trouble.empty(), kFormation, " failed: ", trouble);
  return {rank_, size_, deadlines, memory.mapped(), make_process_transport()};
}

std::vector<std::string> MpiSession::all_gather(std::string_view mine,
                                                std::chrono::milliseconds budget) {
  return gather(kTexts, mine, budget);
}

std::vector<std::string> MpiSession::gather(std::string_view call, std::string_view mine,
                                            std::chrono::milliseconds budget) {
  check_usable(broken_ || apart_, rank_, call);
  const std::size_t ranks = std::size_t(size_);
  auto lengths = std::make_unique<GatheringLengths>();
  auto texts = std::make_unique<GatheringTexts>();
  texts->mine = cat(call, '\n', mine);
  lengths->mine = std::int64_t(texts->mine.size());
  lengths->all.resize(ranks);
  MPI_Iallgather(&lengths->mine, 1, MPI_INT64_T, lengths->all.data(), 1, MPI_INT64_T,
                 MPI_COMM_WORLD, &lengths->request);
  finish(lengths, budget, rank_, call, broken_);
  std::int64_t total = 0;
  for (std::int64_t length : lengths->all) {
    texts->starts.push_back(int(total));
    texts->lengths.push_back(int(length));
    total += length;
    require(total <= std::numeric_limits<int>::max(), call, ": the texts of the ranks take ", total,
            " bytes together, more than the ", std::numeric_limits<int>::max(),
            " of one exchange; send less");
  }
  texts->all.resize(std::size_t(total));
  MPI_Iallgatherv(texts->mine.data(), texts->lengths[std::size_t(rank_)], MPI_CHAR,
                  texts->all.data(), texts->lengths.data(), texts->starts.data(), MPI_CHAR,
                  MPI_COMM_WORLD, &texts->request);
  finish(texts, budget, rank_, call, broken_);
  std::vector<std::string> out;
  for (std::size_t r = 0; r < ranks; ++r)
    out.push_back(texts->all.substr(std::size_t(texts->starts[r]), std::size_t(texts->lengths[r])));
  without_calls(out);
  return out;
}

// Processes in different calls would wait for each other in the next one, so there is none.
void MpiSession::without_calls(std::vector<std::string>& texts) {
  const std::string first = texts[0].substr(0, texts[0].find('\n'));
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const std::size_t end = texts[r].find('\n');
    apart_ = texts[r].compare(0, end, first) != 0;
    require(!apart_, "rank 0 is in ", first, ", rank ", r, " in ", texts[r].substr(0, end),
            "; the processes must make the same calls in the same order, start all alike");
    texts[r].erase(0, end + 1);
  }
}

void MpiSession::sum(const std::shared_ptr<SummedFloats>& floats,
                     std::chrono::milliseconds budget) {
  constexpr std::size_t kMost = std::numeric_limits<int>::max();
  check_usable(broken_ || apart_, rank_, kSum);
  const std::size_t count = floats->mine.size();
  require(floats->all.size() == count, kSum, ": ", count, " floats into ", floats->all.size(),
          "; give as many");
  for (std::size_t at = 0; at < count; at += kMost) {
    auto call = std::make_unique<Summing>();
    call->floats = floats;
    MPI_Iallreduce(floats->mine.data() + at, floats->all.data() + at,
                   int(std::min(kMost, count - at)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                   &call->request);
    finish(call, budget, rank_, kSum, broken_, 0);
  }
}

}  // namespace switchyard::comm
