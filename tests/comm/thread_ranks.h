// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "switchyard/comm/group.h"

namespace switchyard::test {

/// Deadlines that a test can wait for, and ones that it never reaches.
inline comm::Deadlines short_deadlines() {
  return {.warm_up = std::chrono::milliseconds(3100), .serving = std::chrono::milliseconds(3000)};
}
/// Long before and in the first exchange, so that only a death behind it is waited for in vain.
inline comm::Deadlines short_serving() {
  return {.warm_up = std::chrono::seconds(120), .serving = short_deadlines().serving};
}
inline comm::Deadlines long_deadlines() {
  return {.warm_up = std::chrono::seconds(120), .serving = std::chrono::seconds(120)};
}

/// Stands still as a thread that died would, until the others have given up: a throw would tell
/// them at once.
inline void play_dead(const comm::Group& group) {
  while (!group.aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// What became of each rank: its exception, or null.
using Outcomes = std::vector<std::exception_ptr>;

/// Runs f(group) on every rank of a new group of threads and waits for all of them.
template <class F>
Outcomes on_thread_ranks(int ranks, const comm::Deadlines& deadlines, F&& f) {
  std::vector<comm::Group> groups = comm::make_thread_groups(ranks, deadlines);
  Outcomes out;
  out.resize(std::size_t(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&f, &out, group = std::move(groups[std::size_t(r)])]() mutable {
      const int rank = group.rank();
      try {
        f(group);
      } catch (...) {
        out[std::size_t(rank)] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  return out;
}

/// The text of an outcome when it is an E; empty when it went well, "another type: ..." otherwise.
template <class E>
std::string text_of(const std::exception_ptr& outcome) {
  if (!outcome) return "";
  try {
    std::rethrow_exception(outcome);
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("another type: ") + e.what();
  }
}

/// Rethrows the first failure: for ranks that must all end well.
inline void expect_all_well(const Outcomes& outcomes) {
  for (const std::exception_ptr& o : outcomes)
    if (o) std::rethrow_exception(o);
}

}  // namespace switchyard::test
