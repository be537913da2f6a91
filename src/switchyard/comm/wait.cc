// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace switchyard::comm {
namespace {

// Not FUTEX_*_PRIVATE: the word may be mapped by several processes.
long futex(const Word& word, int operation, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), operation, value, limit,
                 nullptr, 0);
}

}  // namespace

void sleep_on(const Word& word, std::uint32_t seen, std::chrono::microseconds limit) {
  constexpr std::int64_t kMicrosecondsPerSecond = 1'000'000;
  timespec time{.tv_sec = time_t(limit.count() / kMicrosecondsPerSecond),
                .tv_nsec = long(limit.count() % kMicrosecondsPerSecond * 1000)};
  futex(word, FUTEX_WAIT, seen, &time);
}

void wake(const Word& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

void publish(Word& word, std::uint32_t value) {
  word.store(value, std::memory_order_release);
  wake(word);
}

}  // namespace switchyard::comm
