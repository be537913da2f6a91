// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "switchyard/base/check.h"
#include "switchyard/base/float_env.h"

namespace switchyard {
namespace {

// A layer's stages follow each other within microseconds, so a waiter polls this long before it
// sleeps.
constexpr std::chrono::microseconds kPollTime{20};
constexpr int kPollsPerClockRead = 32;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The pool whose task this thread runs; a call from inside it would wait for itself for ever.
thread_local const void* running_pool = nullptr;

class Inside {
 public:
  explicit Inside(const void* pool) : outer_(std::exchange(running_pool, pool)) {}
  ~Inside() { running_pool = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const void* outer_;
};

/// Polls until `done` or until kPollTime is over; the answer of the last poll.
template <class Done>
bool poll(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + kPollTime;
  do {
    for (int i = 0; i < kPollsPerClockRead; ++i) {
      if (done()) return true;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

struct ThreadPool::State {
  explicit State(int threads) : members(threads) { workers.reserve(std::size_t(threads) - 1); }
  ~State() {
    stop = true;
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (std::thread& w : workers) w.join();
  }

  static constexpr std::uint64_t kClosed = UINT32_MAX;

  const int members;
  std::mutex turn;
  std::vector<std::thread> workers;

  // What workers sleep on; counts calls.
  std::atomic<std::uint32_t> generation{0};
  std::atomic<bool> stop{false};
  // The call's number in the upper half, its next task in the lower. Between two calls the lower
  // half is kClosed, so that a late worker takes no task: neither an old one nor, by the old
  // number, one of a call that is just being written.
  std::atomic<std::uint64_t> ticket{kClosed};
  std::atomic<std::uint32_t> count{0}, done{0};
  std::atomic<Task> task{nullptr};
  std::atomic<void*> context{nullptr};

  std::mutex error_lock;
  std::exception_ptr error;

  /// Opens the call: fields first, then the ticket that leads to them.
  void open(std::uint32_t tasks, Task f, void* with) {
    done.store(0, std::memory_order_release);
    count.store(tasks, std::memory_order_release);
    task.store(f, std::memory_order_release);
    context.store(with, std::memory_order_release);
    const std::uint64_t number = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
    ticket.store(number << 32, std::memory_order_release);
  }

  void close() { ticket.store(ticket.load(std::memory_order_relaxed) | kClosed); }

  void announce() {
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void call(Task f, void* with, std::uint32_t i, int member) {
    try {
      f(with, i, member);
    } catch (...) {
      std::lock_guard lock(error_lock);
      if (!error) error = std::current_exception();
    }
  }

  /// Runs tasks until none is left to be taken.
  void drain(int member) {
    FloatEnvScope env;
    const Inside inside(this);
    std::uint64_t seen = ticket.load(std::memory_order_acquire);
    for (;;) {
      const std::uint32_t i = std::uint32_t(seen), tasks = count.load(std::memory_order_acquire);
      if (i >= tasks) return;
      const Task f = task.load(std::memory_order_acquire);
      void* const with = context.load(std::memory_order_acquire);
      // Only while the ticket is the one seen were these fields those of its call.
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire))
        continue;
      call(f, with, i, member);
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done.notify_one();
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void wait_for_work(std::uint32_t seen) {
    if (poll([&] { return generation.load(std::memory_order_acquire) != seen; })) return;
    generation.wait(seen, std::memory_order_acquire);
  }

  void work(int member) {
    std::uint32_t seen = 0;
    for (;;) {
      while (generation.load(std::memory_order_acquire) == seen) wait_for_work(seen);
      seen = generation.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      drain(member);
    }
  }

  void wait_for_tasks(std::uint32_t tasks) {
    if (poll([&] { return done.load(std::memory_order_acquire) == tasks; })) return;
    for (std::uint32_t now; (now = done.load(std::memory_order_acquire)) != tasks;)
      done.wait(now, std::memory_order_acquire);
  }
};

ThreadPool::ThreadPool(int threads) {
  require(threads >= 1 && threads <= 1024, "threads = ", threads, " is outside 1..1024");
  state_ = std::make_unique<State>(threads);
  try {
    for (int member = 1; member < threads; ++member)
      state_->workers.emplace_back([s = state_.get(), member] { s->work(member); });
  } catch (const std::system_error& e) {
    throw UsageError(cat("threads = ", threads, ": the system starts only ",
                         state_->workers.size() + 1, " (", e.what(), "); use fewer"));
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::size() const { return state_->members; }

void ThreadPool::run(std::int64_t count, Task task, void* context) {
  if (count <= 0) return;
  State& s = *state_;
  ensure(running_pool != &s, "a task of a thread pool calls for_each of the same pool");
  ensure(count < std::int64_t(State::kClosed), count, " tasks in one call of a thread pool");
  std::lock_guard turn(s.turn);
  s.open(std::uint32_t(count), task, context);
  if (s.members > 1 && count > 1) s.announce();
  s.drain(0);
  s.wait_for_tasks(std::uint32_t(count));
  s.close();
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace switchyard
