// What a thread takes further while the program computes, and that it is out of it when told.

#include "job/progress_thread.h"

#include <gmock/gmock.h>

#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <cfenv>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>

#include "base/helper_thread.h"
#include "job/wire/board.h"
#include "support/process_ranks.h"
#include "support/thread_ranks.h"

namespace tutti::test {
namespace {

using std::chrono::seconds;

void await(const std::function<bool()>& what) {
  const auto end = Clock::now() + seconds(60);
  while (!what()) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::yield();
  }
}

// promise: links#what-travels-between-hosts
TEST(ProgressThread, MovesAtOnceAndAfterEveryAnnouncement) {
  run_thread_ranks(1, [&](const Job& job) {
    std::atomic<int> calls{0};
    std::atomic<int> seen{0};
    std::atomic<int> word{0};
    ProgressThread thread(*job.state(), [&] {
      seen = word.load();
      ++calls;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(calls, 0) << "not before it is asked";
    thread.resume();
    await([&] { return calls > 0; });
    for (int k = 1; k <= 2000; ++k) {
      word = k;
      announce(job.state()->board());
      await([&] { return seen == k; });
    }
  });
}

TEST(ProgressThread, IsOutsideOnceItIsPaused) {
  run_thread_ranks(1, [&](const Job& job) {
    int unguarded = 0;  // a thread sanitizer sees two who write
    std::atomic<int> calls{0};
    ProgressThread thread(*job.state(), [&] {
      ++unguarded;
      ++calls;
    });
    for (int k = 0; k < 2000; ++k) {
      const int before = calls;
      thread.resume();
      thread.resume();  // does nothing more
      if (k % 3 == 0) await([&] { return calls > before; });
      announce(job.state()->board());
      thread.pause();
      ++unguarded;
      const int paused = calls;
      EXPECT_EQ(unguarded, paused + k + 1);
      announce(job.state()->board());
      thread.pause();
      EXPECT_EQ(calls, paused);
    }
    EXPECT_EQ(job.state()->board().sleepers, 0) << "it would make every announcement expensive";
  });
}

TEST(ProgressThread, WhatFailsIsLeftToItsOwner) {
  run_thread_ranks(1, [&](const Job& job) {
    std::atomic<int> calls{0};
    ProgressThread thread(*job.state(), [&] {
      ++calls;
      throw std::runtime_error("broken");
    });
    for (int k = 1; k <= 100; ++k) {
      thread.resume();
      await([&] { return calls >= k; });
      announce(job.state()->board());
      thread.pause();
      EXPECT_EQ(calls, k);
    }
  });
}

/// A product that is subnormal, unless the thread flushes such to zero, and a quotient that the
/// thread's rounding decides.
struct Arithmetic {
  float small = 0;
  double third = 0;
  bool operator==(const Arithmetic&) const = default;
};
Arithmetic arithmetic_of_this_thread() {
  volatile float a = 0x1p-100F;
  volatile float b = 0x1p-40F;
  volatile double one = 1;
  volatile double three = 3;
  return {a * b, one / three};
}

TEST(ProgressThread, ComputesAsItsOwnerDoes) {
  run_thread_ranks(1, [&](const Job& job) {
    std::atomic<int> calls{0};
    Arithmetic seen;
    ProgressThread thread(*job.state(), [&] {
      seen = arithmetic_of_this_thread();
      ++calls;
    });
    const auto compare = [&] {
      const int before = calls;
      thread.resume();
      await([&] { return calls > before; });
      thread.pause();
      EXPECT_EQ(seen, arithmetic_of_this_thread());
      return seen;
    };
    const auto usual = compare();
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetround(FE_UPWARD);
    EXPECT_NE(compare().third, usual.third);
    std::fesetenv(&own);
#if defined(__x86_64__)
    const auto control = _mm_getcsr();
    _mm_setcsr(control | 0x8040U);  // as torch::globalContext().setFlushDenormal(true)
    const auto flushed = compare();
    _mm_setcsr(control);
    EXPECT_NE(flushed.small, usual.small);
#endif
    EXPECT_EQ(compare(), usual);
  });
}

TEST(ProgressThread, EndsWhileItMoves) {
  run_thread_ranks(1, [&](const Job& job) {
    for (int k = 0; k < 200; ++k) {
      auto ended = std::make_shared<std::atomic<bool>>(false);
      auto thread =
          std::make_unique<ProgressThread>(*job.state(), [ended] { EXPECT_FALSE(*ended); });
      thread->resume();
      if (k % 2 == 0) std::this_thread::yield();
      thread.reset();
      *ended = true;
    }
  });
}

// promise: links#what-travels-between-hosts
TEST(ProgressThread, IsNoThreadOfTheProgram) {
  run_thread_ranks(1, [&](const Job& job) {
    const int before = other_threads();
    ProgressThread thread(*job.state(), [] {});
    thread.resume();
    await([&] { return other_threads() <= before; });  // it marks itself as it starts
  });
}

// promise: links#what-travels-between-hosts
TEST(ProgressThread, AChildOfForkDoesWithoutIt) {
  const auto outcome = run_process_ranks(1, [](const Job& job) {
    auto thread = std::make_unique<ProgressThread>(*job.state(), [] {});
    thread->resume();
    const pid_t child = ::fork();
    if (child == 0) {
      thread->pause();
      thread.reset();
      ::_exit(7);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  });
  EXPECT_TRUE(outcome.ranks[0].good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
