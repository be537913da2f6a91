// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/comm/group.h"
#include "switchyard/comm/posix_memory.h"

namespace switchyard::test {

/// What became of one process.
struct ProcessOutcome {
  std::string text;  // what f returned, or "error: ..." for what it threw; empty if it died before
  int signal = 0;    // that ended it
  pid_t pid = 0;     // that it had
};

/// Runs f(group) in forked processes, one per rank of a new group, as they would be after MPI has
/// brought them together, and waits for all of them. f returns a text.
template <class F>
std::vector<ProcessOutcome> on_process_ranks(int ranks, const comm::Deadlines& deadlines, F&& f) {
  comm::PosixMemory control = comm::PosixMemory::create(comm::Group::control_bytes(ranks));
  comm::Group::init_control(control.mapped().bytes, ranks);
  std::vector<pid_t> children;
  std::vector<int> ends;
  for (int r = 0; r < ranks; ++r) {
    int pipes[2];
    ensure(pipe(pipes) == 0, "a test has no pipe");
    const pid_t child = fork();
    ensure(child >= 0, "a test cannot fork");
    if (child == 0) {
      std::string text;
      try {
        comm::Group g(r, ranks, deadlines, control.mapped(), comm::make_process_transport());
        text = f(g);
      } catch (const std::exception& e) {
        text = std::string("error: ") + e.what();
      }
      const bool told = write(pipes[1], text.data(), text.size()) == ssize_t(text.size());
      _exit(told ? 0 : 1);  // the parent's static objects are not this process's to destroy
    }
    close(pipes[1]);
    children.push_back(child);
    ends.push_back(pipes[0]);
  }
  std::vector<ProcessOutcome> out(children.size());
  for (std::size_t r = 0; r < out.size(); ++r) {
    char part[512];
    for (ssize_t n; (n = read(ends[r], part, sizeof part)) > 0;)
      out[r].text.append(part, std::size_t(n));
    close(ends[r]);
    out[r].pid = children[r];
    int status = 0;
    waitpid(children[r], &status, 0);
    if (WIFSIGNALED(status)) out[r].signal = WTERMSIG(status);
  }
  return out;
}

/// Whether shared memory of ours that one of these processes made, or this one, has its name still.
inline bool left_in_dev_shm(const std::vector<ProcessOutcome>& processes) {
  auto made_by = [](const std::string& file, pid_t pid) {
    return file.starts_with(cat("switchyard.", pid, "."));
  };
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string file = entry.path().filename().string();
    if (made_by(file, getpid())) return true;
    for (const ProcessOutcome& p : processes)
      if (made_by(file, p.pid)) return true;
  }
  return false;
}

}  // namespace switchyard::test
