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

  const int members;
  std::mutex turn;
  std::vector<std::thread> workers;

  std::atomic<std::uint32_t> generation{0};
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> next{0};
  std::atomic<int> busy{0};
  std::int64_t count = 0;
  Task task = nullptr;
  void* context = nullptr;

  std::mutex error_lock;
  std::exception_ptr error;

  void drain(int member) {
    FloatEnvScope env;
    const Inside inside(this);
    for (;;) {
      std::int64_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return;
      try {
        task(context, i, member);
      } catch (...) {
        std::lock_guard lock(error_lock);
        if (!error) error = std::current_exception();
      }
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
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
    }
  }

  void wait_for_workers() {
    if (poll([&] { return busy.load(std::memory_order_acquire) == 0; })) return;
    for (int left; (left = busy.load(std::memory_order_acquire)) != 0;)
      busy.wait(left, std::memory_order_acquire);
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
  std::lock_guard turn(s.turn);
  s.count = count;
  s.task = task;
  s.context = context;
  s.next.store(0, std::memory_order_relaxed);
  bool alone = s.members == 1 || count == 1;
  if (!alone) {
    s.busy.store(s.members - 1, std::memory_order_relaxed);
    s.generation.fetch_add(1, std::memory_order_release);
    s.generation.notify_all();
  }
  s.drain(0);
  if (!alone) s.wait_for_workers();
  if (s.error) std::rethrow_exception(std::exchange(s.error, nullptr));
}

}  // namespace switchyard
