// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "switchyard/base/errors.h"

namespace switchyard::comm {

/// A word that ranks share, in memory of one process or of several. Written by one rank only,
/// unless its declaration says otherwise.
using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "processes share it by address");

/// Whether sequence number `now` has come to `wanted`; right across the wrap as long as the two
/// are less than 2^31 apart.
constexpr bool reached(std::uint32_t now, std::uint32_t wanted) {
  return std::int32_t(now - wanted) >= 0;
}

/// Sleeps until `word` differs from `seen`, somebody wakes it, or `limit` is over; may also return
/// early.
void sleep_on(const Word& word, std::uint32_t seen, std::chrono::microseconds limit);
/// Wakes all who sleep on `word`, in any process.
void wake(const Word& word);
/// Publishes `value`, with everything written before it, and wakes who sleeps on the word.
void publish(Word& word, std::uint32_t value);

/// A peer did not do its part in time, or gave up.
class PeerError : public DeviceError {
 public:
  /// What happened, in numbers: `peer` is -1 when it is not known which one.
  struct Facts {
    int rank = 0;
    int peer = -1;
    std::string phase;
    double elapsed_s = 0;
  };
  /// `text` is the whole message.
  PeerError(const std::string& text, Facts facts) : DeviceError(text), facts_(std::move(facts)) {}
  /// Who waited, for whom, where and for how long.
  const Facts& facts() const { return facts_; }

 private:
  Facts facts_;
};

/// How long waits may last: before and in the first exchange, and after it.
struct Deadlines {
  std::chrono::milliseconds warm_up{1'800'000};
  std::chrono::milliseconds serving{300'000};
};

}  // namespace switchyard::comm
