// A step's end for a worker that comes too late, or in the moment in which the others give up:
// ranks are threads. And for a child that a worker makes by fork(): ranks are processes.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include <gmock/gmock.h>

#include "comm/on_hosts.h"
#include "job/job_state.h"
#include "support/process_ranks.h"
#include "support/slow_blame.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/step/step_exchange.h"
#include "sync/whole_step.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const std::vector<std::size_t> kSizes = {65, 5000, 1};

ExchangeOptions with_deadline(milliseconds deadline) {
  ExchangeOptions options;
  options.name = "model";
  options.deadline = deadline;
  return options;
}

std::vector<float> ones_times(float value) { return std::vector<float>(5000, value); }

/// A step of which every element is the sum of rank + 1, divided by the ranks.
void compute(StepExchange& exchange, int rank) {
  const auto gradient = ones_times(static_cast<float>(rank + 1));
  exchange.open_one_backward(1);
  for (std::size_t p = kSizes.size(); p > 0; --p)
    exchange.leaves().write(p - 1, gradient.data(), true);
}

void expect_reduced(const StepExchange& exchange, float value) {
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    const auto* const at = reinterpret_cast<const float*>(exchange.nodes().result(p));
    EXPECT_EQ(std::count(at, at + kSizes[p], value), static_cast<std::ptrdiff_t>(kSizes[p])) << p;
  }
}

/// What it says at its deadline does not get through either: it has its Timeout all the same.
TEST(LateWorker, WhomNothingReachesAnyMoreTimesOut) {
  auto options = on({{0}, {1}});
  options.job.deadline = seconds(1);
  std::atomic<bool> is_over{false};
  const auto outcome = try_thread_ranks(
      2,
      [&](const Job& job) {
        auto busy = std::unique_ptr<Busy>(new Busy(job.busy("setting up", seconds(60))));
        const Group group(job);
        StepExchange exchange(group, plan_of(kSizes), with_deadline(milliseconds(100)));
        group.barrier();
        busy.reset();
        if (job.rank() == 0) {
          while (!is_over) std::this_thread::sleep_for(milliseconds(1));
          return;
        }
        std::this_thread::sleep_for(milliseconds(50));  // what came before is through
        options.world->hosts()->hold(1, true);
        try {
          compute(exchange, 1);
          finish(exchange);
        } catch (...) {
          options.world->hosts()->hold(1, false);
          is_over = true;
          throw;
        }
      },
      options);
  EXPECT_FALSE(outcome.errors[0]);
  ASSERT_TRUE(outcome.errors[1]);
  EXPECT_THROW(std::rethrow_exception(outcome.errors[1]), Timeout);
}

// The others have left the step at their deadline, and use their memory again.
// promise: errors#who-is-told-what-when-it-is-close
TEST(LateWorker, OfATimedOutStepIsToldSo) {
  for (const int ranks : {2, 3}) {
    std::atomic<bool> arrived{false};
    std::atomic<int> gave_up{0};
    std::atomic<int> left{0};
    run_thread_ranks(ranks, [&](const Job& job) {
      const bool late = job.rank() == ranks - 1;
      StepExchange exchange(Group(job), plan_of(kSizes),
                            with_deadline(late ? seconds(60) : milliseconds(200)));
      compute(exchange, job.rank());
      if (!late) {
        EXPECT_THROW(finish(exchange), Timeout);
        ++gave_up;
        // Until then some write to others' memory what they owe.
        poll_until([&] { return arrived && gave_up == ranks - 1; });
        const auto arena = exchange.nodes().arena();
        std::fill(arena.data(), arena.data() + arena.bytes(), std::byte{0x40});
        ++left;
        poll_until([&] { return left == ranks; });  // to end earlier is an error of its own
        return;
      }
      const auto wait = [&] {
        arrived = true;
        poll_until([&] { return left == ranks - 1; });
      };
      try {
        exchange.arrive({});
        wait();
        exchange.complete([&] { exchange.fold_slices(); });
        ADD_FAILURE() << "a step that has timed out for the others succeeded";
      } catch (const Timeout& e) {
        EXPECT_THAT(e.what(), HasSubstr("rank " + std::to_string(ranks - 1)));
      }
      EXPECT_THROW(exchange.open_one_backward(1), Timeout);
      ++left;
    });
  }
}

// Between the last look of the worker that gives up and its word that the exchange has ended.
// promise: errors#who-is-told-what-when-it-is-close
TEST(LateWorker, WhoComesAtTheMomentOfTheTimeoutEndsLikeTheOthers) {
  const auto world = std::make_shared<ThreadWorld>(2);
  std::atomic<bool> blaming{false};
  std::atomic<bool> go{false};
  const auto run = [&](int rank) {
    std::unique_ptr<Rendezvous> rendezvous = world->thread_rendezvous().rendezvous(rank);
    if (rank == 0) {
      rendezvous = std::make_unique<SlowBlame>(std::move(rendezvous), blaming, go);
    }
    const Job job(std::make_shared<JobState>(Identity{rank, 2},
                                             std::make_shared<ThreadSystem>(world, rank),
                                             std::move(rendezvous), JobOptions{}));
    StepExchange exchange(Group(job), plan_of(kSizes),
                          with_deadline(rank == 0 ? milliseconds(200) : milliseconds(60'000)));
    compute(exchange, rank);
    const auto finish_late = [&] {
      exchange.arrive({});
      if (rank == 1) poll_until([&] { return blaming.load(); });
      exchange.complete([&] { exchange.fold_slices(); });
    };
    EXPECT_NO_THROW(finish_late()) << "rank " << rank;
    expect_reduced(exchange, 1.5f);
    EXPECT_EQ(exchange.protocol().numbers().done, 1);
    go = true;
    const auto next = [&] {
      compute(exchange, rank);
      finish(exchange);
    };
    EXPECT_THROW(next(), Timeout) << "rank " << rank;
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

struct Left {};

// promise: errors#children-of-a-worker
TEST(ForkedChildOfAStep, ThatLeavesItsScopeLetsTheWorkerGoOn) {
  for (const bool throws : {false, true}) {
    for (const bool in_step : {false, true}) {
      const ProcessOutcome outcome = run_process_ranks(2, [&](const Job& job) {
        const pid_t worker = ::getpid();
        const auto train = [&] {
          StepExchange exchange(Group(job), plan_of(kSizes), with_deadline(seconds(30)));
          for (int step = 1; step <= 3; ++step) {
            const bool forks = job.rank() == 1 && step == 2;
            const auto fork_child = [&] {
              const pid_t child = ::fork();
              if (child == 0 && throws) throw Left();
              if (child == 0) return true;
              int status = -1;
              EXPECT_EQ(::waitpid(child, &status, 0), child);
              EXPECT_EQ(status, 0);
              return false;
            };
            if (forks && !in_step && fork_child()) return;
            compute(exchange, job.rank());
            if (forks && in_step && fork_child()) return;
            finish(exchange);
            expect_reduced(exchange, 1.5f);
          }
        };
        try {
          train();
        } catch (const Left&) {
        }
        if (::getpid() != worker) ::_exit(0);
      });
      EXPECT_TRUE(outcome.all_good()) << outcome.describe();
    }
  }
}

// promise: errors#children-of-a-worker
TEST(ForkedChildOfAStep, IsRefusedByEveryCall) {
  const ProcessOutcome outcome = run_process_ranks(2, [&](const Job& job) {
    StepExchange exchange(Group(job), plan_of(kSizes), with_deadline(seconds(30)));
    const std::vector<float> gradient = ones_times(100);
    const auto in_child = [&](const std::vector<std::function<void()>>& calls) {
      if (job.rank() != 1) return;
      const pid_t child = ::fork();
      if (child == 0) {
        for (const auto& call : calls) {
          EXPECT_THROW(call(), Unsupported);
        }
        exchange.protocol().fail("the child has failed");
        ::_exit(::testing::Test::HasFailure() ? 1 : 0);
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    };
    in_child({[&] { exchange.open_one_backward(1); }, [&] { exchange.open_scope(2); },
              [&] { exchange.open_without_gradient(1, false); },
              [&] { exchange.protocol().run_collectives([] {}); },
              [&] { exchange.protocol().require_running(); }});
    compute(exchange, job.rank());
    in_child({[&] { exchange.leaves().write(0, gradient.data(), true); }, [&] { finish(exchange); },
              [&] { exchange.protocol().barrier("apply() in"); },
              [&] { exchange.complete([] {}); }});
    finish(exchange);
    expect_reduced(exchange, 1.5f);
  });
  EXPECT_TRUE(outcome.all_good()) << outcome.describe();
}

}  // namespace
}  // namespace tutti::test
