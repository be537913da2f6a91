// SPDX-License-Identifier: Apache-2.0
#include "tests/support/command_runner.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "switchyard/base/text.h"

namespace switchyard::test {
namespace {

/// A file in the temporary folder that goes away with this.
class Scratch {
 public:
  Scratch() {
    char name[] = "/tmp/switchyard_command_XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0) throw std::runtime_error("no temporary file can be made");
    close(fd);
    path_ = name;
  }
  ~Scratch() { std::remove(path_.c_str()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }
  std::string content() const {
    std::ostringstream out;
    out << std::ifstream(path_, std::ios::binary).rdbuf();
    return out.str();
  }

 private:
  std::string path_;
};

/// A pseudo-terminal; what the process writes waits in it to be read.
class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0)
      throw std::runtime_error("no pseudo-terminal can be made");
    path_ = ptsname(master_);
    slave_ = open(path_.c_str(), O_RDWR | O_NOCTTY);  // keeps what was written until we read it
  }
  ~Terminal() {
    close(slave_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const std::string& path() const { return path_; }
  std::string content() const {
    fcntl(master_, F_SETFL, O_NONBLOCK);
    std::string out;
    char buffer[4096];
    for (ssize_t n; (n = read(master_, buffer, sizeof buffer)) > 0;)
      out.append(buffer, std::size_t(n));
    return out;
  }

 private:
  int master_, slave_ = -1;
  std::string path_;
};

bool is_switch(std::string_view entry) {
  return entry.starts_with("SWITCHYARD_") || entry.starts_with("TRTLLM_") ||
         entry.starts_with("TLLM_");
}

std::vector<std::string> environment_of(const Start& start) {
  std::vector<std::string> out;
  for (char** at = environ; *at != nullptr; ++at)
    if (!is_switch(*at)) out.emplace_back(*at);
  for (const auto& [name, value] : start.env) out.push_back(cat(name, "=", value));
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

int wait_for(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) throw std::runtime_error("waiting for the command failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int spawn(const Start& start, const std::string& out_path, const std::string& err_path) {
  std::vector<std::string> words = start.launcher;
  words.emplace_back(SWITCHYARD_COMMAND);
  words.insert(words.end(), start.args.begin(), start.args.end());
  std::vector<std::string> variables = environment_of(start);
  std::vector<char*> argv = pointers(words), envp = pointers(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_path.c_str(), O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err_path.c_str(), O_WRONLY, 0);
  pid_t pid = 0;
  int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error(std::string("cannot start ") + argv[0]);
  return wait_for(pid);
}

}  // namespace

Finished run_command(const Start& start) {
  Scratch out, err;
  std::string out_path = start.out_path.empty() ? out.path() : start.out_path;
  Finished done;
  if (start.terminal) {
    Terminal terminal;
    done.status = spawn(start, out_path, terminal.path());
    done.err = terminal.content();
  } else {
    done.status = spawn(start, out_path, err.path());
    done.err = err.content();
  }
  done.out = out.content();
  return done;
}

Finished run_command(const std::vector<std::string>& args) {
  Start start;
  start.args = args;
  return run_command(start);
}

}  // namespace switchyard::test
