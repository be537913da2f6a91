// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/thread_team.h"

#include <exception>
#include <system_error>
#include <vector>

#include "switchyard/base/check.h"

namespace switchyard::comm {
namespace {

void rethrow_cause(std::span<const std::exception_ptr> failures) {
  std::exception_ptr effect;
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    try {
      std::rethrow_exception(failure);
    } catch (const PeerError&) {
      if (!effect) effect = failure;  // perhaps another rank's doing
    }
  }
  if (effect) std::rethrow_exception(effect);
}

}  // namespace

std::thread start_thread(std::function<void()> body) { return std::thread(std::move(body)); }

void run_on_threads(std::span<Group> groups, const std::function<void(Group&)>& work,
                    std::thread (*start)(std::function<void()>)) {
  std::vector<std::exception_ptr> failures(groups.size());
  std::vector<std::thread> threads;
  threads.reserve(groups.size());
  std::string refused;
  try {
    for (std::size_t r = 0; r < groups.size(); ++r)
      threads.push_back(start([&work, &group = groups[r], &failure = failures[r]] {
        try {
          or_abort(group, [&] { work(group); });
        } catch (...) {
          failure = std::current_exception();
        }
      }));
  } catch (const std::exception& e) {  // system_error, or no memory for what a thread is handed
    refused = cat("the system starts only ", threads.size(), " threads of the ", groups.size(),
                  " ranks (", e.what(), "); use fewer ranks, or raise the limit (ulimit -u)");
    groups[threads.size()].abort(refused);  // ends the waits of those that run
  }
  for (std::thread& t : threads) t.join();
  require(refused.empty(), refused);
  rethrow_cause(failures);
}

}  // namespace switchyard::comm
