// SPDX-License-Identifier: Apache-2.0
#include "switchyard/base/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "switchyard/base/arena.h"
#include "switchyard/base/errors.h"
#include "switchyard/base/float_env.h"
#include "switchyard/base/host_buffer.h"
#include "tests/support/selection_cases.h"

namespace switchyard {
namespace {

using test::usage_error_of;
using testing::HasSubstr;

// x86's control word with flush-to-zero and denormals-are-zero; restores on exit.
class FlushingCaller {
 public:
  FlushingCaller() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushingCaller() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

float halved(float x) {
  volatile float v = x;
  return v * 0.5f;
}

constexpr float kTiny = 0x1p-130f;

TEST(ThreadPool, RunsEveryIndexOnceOnAMemberOfTheTeam) {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (std::int64_t count : {0, 1, 2, 7, 8, 9, 1000, 20'000}) {
      std::vector<std::atomic<int>> ran(static_cast<std::size_t>(count));
      std::atomic<bool> stranger{false};
      pool.for_each(count, [&](std::int64_t i, int member) {
        ++ran[std::size_t(i)];
        if (member < 0 || member >= threads) stranger = true;
      });
      for (const auto& n : ran) ASSERT_EQ(n, 1) << threads << " threads, " << count << " tasks";
      EXPECT_FALSE(stranger);
    }
    pool.for_each(-3, [](std::int64_t, int) { FAIL() << "a negative count has no tasks"; });
  }
}

// Scratch memory is indexed by member, so two tasks of one member must never overlap.
TEST(ThreadPool, AMemberRunsOneTaskAtATime) {
  ThreadPool pool(6);
  std::vector<std::atomic<int>> busy(6);
  std::atomic<int> overlaps{0};
  for (int round = 0; round < 50; ++round)
    pool.for_each(100, [&](std::int64_t, int member) {
      if (busy[std::size_t(member)].fetch_add(1) != 0) ++overlaps;
      busy[std::size_t(member)].fetch_sub(1);
    });
  EXPECT_EQ(overlaps, 0);
}

TEST(ThreadPool, WritesOfTasksAreVisibleAfterTheCall) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(997);
  for (int round = 1; round <= 200; ++round) {
    pool.for_each(997, [&](std::int64_t i, int) { values[std::size_t(i)] += i; });
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], std::int64_t(i) * round);
  }
}

// Calls so short that workers come late to most of them: into none, or into another one.
TEST(ThreadPool, ALateWorkerTakesNoTaskOfAnotherCall) {
  ThreadPool pool(4);
  for (int round = 0; round < 20'000; ++round) {
    const std::int64_t count = round % 5 + 1;
    std::array<std::atomic<int>, 5> ran{};
    std::atomic<bool> stranger{false};
    pool.for_each(count, [&, round](std::int64_t i, int member) {
      ran[std::size_t(i)] += round;
      if (member < 0 || member > 3) stranger = true;
    });
    for (std::int64_t i = 0; i < 5; ++i)
      ASSERT_EQ(ran[std::size_t(i)], i < count ? round : 0) << round << " " << i;
    ASSERT_FALSE(stranger);
  }
}

TEST(ThreadPool, AnExceptionArrivesAfterAllTasksHaveEnded) {
  for (int threads : {1, 2, 5})
    for (std::int64_t bad : {0, 3, 99}) {
      ThreadPool pool(threads);
      std::atomic<int> ended{0};
      try {
        pool.for_each(100, [&](std::int64_t i, int) {
          if (i == bad) throw std::runtime_error("task " + std::to_string(i));
          ++ended;
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), "task " + std::to_string(bad));
      }
      EXPECT_EQ(ended, 99);
      pool.for_each(10, [&](std::int64_t, int) { ++ended; });  // a good call works right after
      EXPECT_EQ(ended, 109);
    }
}

TEST(ThreadPool, OneOfSeveralExceptionsArrives) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.for_each(64, [](std::int64_t, int) { throw UsageError("all fail"); }),
                 UsageError);
    EXPECT_THROW(pool.for_each(1, [](std::int64_t, int) { throw InternalError("alone"); }),
                 InternalError);
    EXPECT_NO_THROW(pool.for_each(64, [](std::int64_t, int) {}));
  }
}

// It would wait for itself; the error of the inner call is the error of the outer one.
TEST(ThreadPool, ACallFromInsideATaskIsRefused) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads), other(2);
    std::atomic<int> ran{0};
    auto nested = [&](std::int64_t, int) { pool.for_each(1, [](std::int64_t, int) {}); };
    EXPECT_THROW(pool.for_each(5, nested), InternalError);
    pool.for_each(5, [&](std::int64_t, int) {
      other.for_each(4, [&](std::int64_t, int) { ++ran; });  // another pool is fine
    });
    EXPECT_EQ(ran, 20);
    EXPECT_THROW(pool.for_each(3,
                               [&](std::int64_t, int) {
                                 other.for_each(2, [](std::int64_t, int) {
                                   throw UsageError("from the inner pool");
                                 });
                               }),
                 UsageError);
    pool.for_each(5, [&](std::int64_t, int) { ++ran; });
    EXPECT_EQ(ran, 25);
  }
}

TEST(ThreadPool, CallsFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::atomic<int> inside{0}, wrong{0};
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 100; ++round) {
        std::int64_t sum = 0;
        std::vector<std::int64_t> part(3);
        pool.for_each(17, [&](std::int64_t i, int member) {
          if (inside.fetch_add(1) >= 3) ++wrong;
          part[std::size_t(member)] += i + caller;
          inside.fetch_sub(1);
        });
        for (std::int64_t p : part) sum += p;
        if (sum != 136 + 17 * caller) ++wrong;
        total += sum;
      }
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(total, 100 * (4 * 136 + 17 * 6));
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int round = 0; round < 30; ++round) ThreadPool idle(1 + round % 8);
}

TEST(ThreadPool, RefusesATeamOutsideItsLimits) {
  for (int threads : {0, -1, 1025})
    EXPECT_THAT(usage_error_of([&] { ThreadPool pool(threads); }),
                testing::AllOf(HasSubstr(std::to_string(threads)), HasSubstr("1..1024")));
}

// In a process of its own whose address space holds some hundred stacks at most.
TEST(ThreadPool, SaysWhenTheSystemRefusesAThread) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own mappings exceed any such limit";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto ask_too_much = [] {
    const rlimit limit{rlim_t{1} << 30, rlim_t{1} << 30};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
    try {
      ThreadPool pool(1024);
    } catch (const UsageError& e) {
      std::exit(std::string_view(e.what()).starts_with("threads = 1024: the system") ? 0 : 3);
    }
    std::exit(4);
  };
  EXPECT_EXIT(ask_too_much(), testing::ExitedWithCode(0), "");
}

TEST(ThreadPool, TasksRunInTheDefaultFloatEnvironment) {
  const FlushingCaller caller;
  ASSERT_EQ(halved(kTiny), 0) << "the caller does flush, or the test proves nothing";
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::atomic<int> flushed{0};
    pool.for_each(64, [&](std::int64_t, int) { flushed += halved(kTiny) == 0; });
    EXPECT_EQ(flushed, 0);
    EXPECT_THROW(pool.for_each(2, [](std::int64_t, int) { throw UsageError("x"); }), UsageError);
    EXPECT_EQ(halved(kTiny), 0) << "the caller's own environment came back";
  }
}

TEST(FloatEnv, ScopesNest) {
  const FlushingCaller caller;
  {
    const FloatEnvScope outer;
    EXPECT_NE(halved(kTiny), 0);
    {
      const FlushingCaller inner;
      EXPECT_EQ(halved(kTiny), 0);
    }
    EXPECT_NE(halved(kTiny), 0);
  }
  EXPECT_EQ(halved(kTiny), 0);
}

struct Parts {
  std::span<char> a;
  std::span<double> b;
  std::span<float> none;
  std::span<std::uint16_t> c;
};

Parts take_parts(Arena& arena) {
  Parts p;
  p.a = arena.take<char>(65);
  p.b = arena.take<double>(3);
  p.none = arena.take<float>(0);
  p.c = arena.take<std::uint16_t>(7);
  return p;
}

TEST(Arena, MeasuringAndTakingAgree) {
  Arena measure;
  const Parts counted = take_parts(measure);
  EXPECT_TRUE(measure.measuring());
  EXPECT_EQ(counted.a.data(), nullptr);
  EXPECT_EQ(counted.b.size(), 3u);
  // 65 bytes, 24 bytes, none and 14, each on a boundary of 64 and with a guard of g behind it.
  const std::size_t g = Arena::kGuard, none = g == 0 ? 192 : 320, c = none + g;
  EXPECT_EQ(measure.used(), c + 14 + g);
  HostBuffer memory(measure.used());
  Arena arena(memory.bytes());
  const Parts p = take_parts(arena);
  EXPECT_EQ(arena.used(), measure.used());
  EXPECT_EQ(reinterpret_cast<std::byte*>(p.b.data()) - memory.data(), g == 0 ? 128 : 192);
  EXPECT_EQ(std::size_t(reinterpret_cast<std::byte*>(p.c.data()) - memory.data()), c);
  EXPECT_TRUE(p.none.empty());
}

TEST(Arena, RefusesABufferThatIsTooSmallOrMisplaced) {
  Arena measure;
  take_parts(measure);
  const std::size_t need = measure.used();
  HostBuffer memory(4096);
  EXPECT_THAT(usage_error_of([&] {
                Arena arena(memory.bytes().first(need - 1));
                take_parts(arena);
              }),
              testing::AllOf(HasSubstr(std::to_string(need - 1)), HasSubstr(std::to_string(need))));
  EXPECT_THAT(usage_error_of([&] { Arena arena(memory.bytes().subspan(8)); }), HasSubstr("64"));
  Arena good(memory.bytes().first(need));
  EXPECT_NO_THROW(take_parts(good));
}

#if defined(__SANITIZE_ADDRESS__)
TEST(Arena, UnderTheSanitizerEveryPartHasAGuard) {
  HostBuffer memory(4096);
  std::byte* p = memory.data();
  {
    Arena arena(memory.bytes());
    take_parts(arena);
    std::size_t guarded = 0;
    for (std::size_t i = 0; i < arena.used(); ++i)
      guarded += __asan_address_is_poisoned(p + i) != 0;
    EXPECT_GE(guarded, 4 * (Arena::kGuard - 7)) << "guards end on granules of 8 bytes";
    EXPECT_FALSE(__asan_address_is_poisoned(p + 64));
    EXPECT_TRUE(__asan_address_is_poisoned(p + 65)) << "one past the first part";
  }
  for (std::size_t i = 0; i < 4096; ++i) ASSERT_FALSE(__asan_address_is_poisoned(p + i)) << i;
}
#endif

TEST(HostBuffer, IsZeroedAlignedAndMovable) {
  HostBuffer a(100'001);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 4096, 0u);
  EXPECT_THAT(a.bytes(), testing::Each(std::byte(0)));
  EXPECT_EQ(a.bytes().size(), 100'001u);
  a.bytes()[7] = std::byte(9);
  const std::byte* place = a.data();
  HostBuffer b(std::move(a));
  EXPECT_EQ(b.data(), place);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT: a moved-from buffer is empty
  HostBuffer c(16);
  c = std::move(b);
  EXPECT_EQ(c.data(), place);
  EXPECT_EQ(c.bytes()[7], std::byte(9));
  EXPECT_TRUE(HostBuffer().bytes().empty());
  EXPECT_EQ(HostBuffer(0).data(), nullptr);
}

TEST(HostBuffer, SaysWhenTheSystemRefuses) {
  const std::size_t bytes = std::size_t(1) << 60;
  EXPECT_THAT(usage_error_of([&] { HostBuffer b(bytes); }), HasSubstr(std::to_string(bytes)));
  EXPECT_NO_THROW(HostBuffer(4096));
}

}  // namespace
}  // namespace switchyard
