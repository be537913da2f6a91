// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace switchyard {

/// A fixed team of threads that runs indexed tasks; the calling thread is member 0.
///
/// Tasks are handed out in index order, one at a time. Which thread runs a task never influences a
/// result. Calls allocate nothing; calls from several threads take turns.
class ThreadPool {
 public:
  /// Starts `threads` - 1 workers. Errors: UsageError unless 1 <= threads <= 1024, and when the
  /// system refuses one.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Members of the team, the caller included.
  int size() const;

  /// Calls f(index, member) once for each index in [0, count) and returns when all are done.
  /// Every task runs in the IEEE default float environment.
  /// Errors: the first exception that a task threw, after all tasks have ended; InternalError when
  ///         called from a task of this pool.
  template <class F>
  void for_each(std::int64_t count, F&& f) {
    using Fn = std::remove_reference_t<F>;
    run(
        count, [](void* fn, std::int64_t i, int member) { (*static_cast<Fn*>(fn))(i, member); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Task = void (*)(void*, std::int64_t, int);
  void run(std::int64_t count, Task task, void* context);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard
