// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <thread>

#include "switchyard/comm/group.h"

namespace switchyard::comm {

/// Starts a thread. Errors: std::system_error when the system refuses.
std::thread start_thread(std::function<void()> body);

/// Runs work(groups[r]) on a thread of its own for every r, and returns when all have ended. A
/// rank that throws aborts its group with what it says. `start` is a test's hand.
/// Errors:  UsageError when the system starts fewer threads; else what a rank threw, of the lowest
///          rank, a cause before the PeerErrors that it brought on others.
void run_on_threads(std::span<Group> groups, const std::function<void(Group&)>& work,
                    std::thread (*start)(std::function<void()>) = start_thread);

}  // namespace switchyard::comm
