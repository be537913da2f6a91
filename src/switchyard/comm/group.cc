// SPDX-License-Identifier: Apache-2.0
#include "switchyard/comm/group.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <mutex>
#include <new>

#include "switchyard/base/check.h"
#include "switchyard/base/host_buffer.h"
#include "switchyard/comm/agreement.h"
#include "switchyard/comm/control_block.h"

namespace switchyard::comm {

namespace {

constexpr std::chrono::microseconds kPollTime{20};
// A sleeper looks at the abort cell this often; setting it wakes nobody.
constexpr std::chrono::microseconds kSlice{2000};

}  // namespace

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string in_seconds(double s) {
  std::int64_t ms = std::int64_t(s * 1000);
  return cat(ms / 1000, ".", ms % 1000 / 100, " s");
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class ThreadTransport : public Transport {
 public:
  SharedBytes share(Group& group, std::size_t bytes, std::string_view phase) override {
    std::string error;
    std::shared_ptr<HostBuffer> mine;
    try {
      std::lock_guard lock(mutex_);
      mine = current_.lock();
      if (!mine) current_ = mine = std::make_shared<HostBuffer>(bytes);
    } catch (const std::exception& e) {
      error = e.what();
    }
    group.settle(error, phase);
    {
      std::lock_guard lock(mutex_);
      current_.reset();  // the next call makes a new one
    }
    group.barrier(phase);
    return {mine, mine->bytes()};
  }

  std::string make_control(std::size_t bytes) override {
    std::lock_guard lock(mutex_);
    next_control_ = std::make_shared<HostBuffer>(bytes);
    next_transport_ = std::make_shared<ThreadTransport>();
    return next_name_ = cat("threads ", ++controls_made_);
  }
  SharedBytes open_control(const std::string& name, std::size_t) override {
    std::lock_guard lock(mutex_);
    require(next_control_ && name == next_name_, "the control block '", name,
            "' was given up before this rank took its seat; form the group again");
    return {next_control_, next_control_->bytes()};
  }
  std::shared_ptr<Transport> next() override {
    std::lock_guard lock(mutex_);
    return next_transport_;
  }
  void control_opened() override {
    std::lock_guard lock(mutex_);
    next_control_.reset();
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<HostBuffer> current_;
  // Of the group of survivors that follows this one.
  std::shared_ptr<HostBuffer> next_control_;
  std::shared_ptr<Transport> next_transport_;
  std::string next_name_;
  int controls_made_ = 0;
};

std::chrono::milliseconds seconds_of(const Environment& env, std::string_view name) {
  std::string_view text = env.flag(name);
  int s = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), s);
  ensure(error == std::errc() && end == text.data() + text.size(), "the environment holds ", name,
         " = '", text, "'");
  return std::chrono::seconds(s);
}

}  // namespace

Deadlines deadlines_of(const Environment& env) {
  return {.warm_up = seconds_of(env, "SWITCHYARD_WARMUP_TIMEOUT_S"),
          .serving = seconds_of(env, "SWITCHYARD_SERVING_TIMEOUT_S")};
}

Group::Group(int rank, int size, const Deadlines& deadlines, SharedBytes control,
             std::shared_ptr<Transport> transport)
    : rank_(rank),
      size_(size),
      deadlines_(deadlines),
      control_(std::move(control)),
      transport_(std::move(transport)) {
  require(size >= 1 && size <= kMaxGroupRanks, "a group of ", size, " ranks is outside 1..",
          kMaxGroupRanks);
  ensure(rank >= 0 && rank < size, "rank ", rank, " is outside a group of ", size);
  const Control& c = this->control();
  ensure(c.magic == kControlMagic && c.version == kControlVersion && c.size == std::uint32_t(size),
         "the control block is of version ", c.version, " for ", c.size, " ranks, not ",
         kControlVersion, " for ", size);
}

Control& Group::control() const { return *reinterpret_cast<Control*>(control_.bytes.data()); }

std::size_t Group::control_bytes(int size) {
  return sizeof(Control) + std::size_t(size) * sizeof(Seat);
}

void Group::init_control(std::span<std::byte> bytes, int size) {
  ensure(bytes.size() >= control_bytes(size), "the control block does not fit");
  auto* c = new (bytes.data()) Control{};
  for (int r = 0; r < size; ++r) new (c->seats() + r) Seat{};
  c->size = std::uint32_t(size);
  c->version = kControlVersion;
  c->magic = kControlMagic;
}

void Group::check_alive(std::string_view phase) {
  Patience(*this, phase, deadlines_.serving).check_abort(0);
}

void Group::barrier(std::string_view phase) {
  check_alive(phase);
  Seat* seats = control().seats();
  publish(seats[rank_].arrived, ++sequence_);
  Patience patience(*this, phase, deadlines_.warm_up);
  for (int r = 0; r < size_; ++r) patience.until(seats[r].arrived, sequence_, r);
}

std::vector<std::string> Group::all_gather(std::string_view mine, std::string_view phase) {
  Seat* seats = control().seats();
  std::vector<std::string> out;
  out.resize(std::size_t(size_));
  std::size_t longest = 0, sent = 0;
  do {
    Seat& own = seats[rank_];
    own.length = mine.size();
    std::size_t part = sent < mine.size() ? std::min(kMailBytes, mine.size() - sent) : 0;
    if (part > 0) std::memcpy(own.mail, mine.data() + sent, part);
    barrier(phase);
    for (int r = 0; r < size_; ++r) {
      std::string& text = out[std::size_t(r)];
      std::size_t length = seats[r].length;
      longest = std::max(longest, length);
      text.append(seats[r].mail, std::min(kMailBytes, length - text.size()));
    }
    barrier(phase);  // before anybody overwrites its mail
    sent += kMailBytes;
  } while (sent < longest);
  return out;
}

bool Group::vote(bool yes, std::string_view phase) {
  std::vector<std::string> all = all_gather(yes ? "y" : "n", phase);
  return std::all_of(all.begin(), all.end(), [](const std::string& v) { return v == "y"; });
}

void Group::settle(std::string_view error, std::string_view phase) {
  const std::string text = joined_errors(all_gather(error, phase));
  require(text.empty(), phase, " failed: ", text);
}

SharedBytes Group::share(std::size_t bytes, std::string_view phase) {
  const Agreed size{"bytes", cat(bytes)};
  agree(*this, {&size, 1}, phase);
  return transport_->share(*this, bytes, phase);
}

void Group::abort(std::string_view why) noexcept {
  Control& c = control();
  std::uint32_t expected = kAbortFree;
  if (!c.abort.compare_exchange_strong(expected, kAbortClaimed, std::memory_order_acq_rel)) return;
  std::size_t length = std::min(why.size(), kAbortText - 1);
  std::memcpy(c.abort_text, why.data(), length);
  c.abort_text[length] = 0;
  c.abort.store(kAbortedBy + std::uint32_t(rank_), std::memory_order_release);
}

void abort_for_current(Group& group) noexcept {
  try {
    throw;
  } catch (const std::exception& e) {
    group.abort(e.what());
  } catch (...) {
    group.abort("an exception without a text");
  }
}

bool Group::aborted() const {
  return control().abort.load(std::memory_order_acquire) != kAbortFree;
}

void Patience::check_abort(double elapsed_s) const {
  Control& c = group_->control();
  std::uint32_t cell = c.abort.load(std::memory_order_acquire);
  if (cell < kAbortedBy) return;
  int peer = int(cell - kAbortedBy);
  throw PeerError(cat("rank ", group_->rank(), " stops in ", phase_, " after ",
                      in_seconds(elapsed_s), ": rank ", peer, " gave up (", c.abort_text, ")"),
                  {group_->rank(), peer, std::string(phase_), elapsed_s});
}

void Patience::give_up(int peer, double elapsed_s) {
  std::string text =
      cat("rank ", group_->rank(), " waited ", in_seconds(elapsed_s), " for rank ", peer, " in ",
          phase_, " (deadline ", in_seconds(double(budget_.count()) / 1000),
          "); see whether that rank runs, or raise the deadline");
  group_->abort(text);
  throw PeerError(text, {group_->rank(), peer, std::string(phase_), elapsed_s});
}

void Patience::pause(const Word& word, std::uint32_t seen, int peer) {
  double elapsed_s = seconds_since(start_);
  check_abort(elapsed_s);
  auto left = budget_ - std::chrono::milliseconds(std::int64_t(elapsed_s * 1000));
  if (left.count() <= 0) give_up(peer, elapsed_s);
  const auto end = std::chrono::steady_clock::now() + kPollTime;
  constexpr int kPollsPerClockRead = 32;
  do {
    for (int i = 0; i < kPollsPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < end);
  sleep_on(word, seen, kSlice);
}

void Patience::until(const Word& word, std::uint32_t wanted, int peer) {
  for (;;) {
    std::uint32_t seen = word.load(std::memory_order_acquire);
    if (reached(seen, wanted)) return;
    pause(word, seen, peer);
  }
}

std::vector<Group> make_thread_groups(int ranks, const Deadlines& deadlines) {
  require(ranks >= 1 && ranks <= kMaxGroupRanks, "a group of ", ranks, " ranks is outside 1..",
          kMaxGroupRanks);
  auto memory = std::make_shared<HostBuffer>(Group::control_bytes(ranks));
  Group::init_control(memory->bytes(), ranks);
  auto transport = std::make_shared<ThreadTransport>();
  std::vector<Group> out;
  out.reserve(std::size_t(ranks));
  for (int r = 0; r < ranks; ++r)
    out.emplace_back(r, ranks, deadlines, SharedBytes{memory, memory->bytes()}, transport);
  return out;
}

void agree(Group& group, std::span<const Agreed> mine, std::string_view phase) {
  compare_agreed(group.all_gather(agreed_text(mine), phase), phase);
}

}  // namespace switchyard::comm
