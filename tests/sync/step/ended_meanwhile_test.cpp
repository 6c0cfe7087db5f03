// A worker that ends its part while others wait for it in a collective besides steps, as in
// Trainer::evaluate() and save(): they learn of it at once, not at their deadline.

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "job/job_state.h"
#include "job/wire/board.h"
#include "support/thread_ranks.h"
#include "sync/gradient_oracle.h"
#include "sync/step/step_exchange.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// Until that worker sleeps in a wait.
void await_wait_of(const Job& job, int rank) {
  const auto end = Clock::now() + seconds(60);
  while (!read(job.state()->slot(rank).notice).in_wait()) {
    ASSERT_LT(Clock::now(), end);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(EndedMeanwhile, IsNoticedInsideACollective) {
  for (const int ranks : {2, 3}) {
    std::atomic<int> told{0};
    run_thread_ranks(ranks, [&](const Job& job) {
      const Group group(job);  // outlives the exchange, as one that the program made
      ExchangeOptions options;
      options.name = "model";
      auto exchange = std::make_unique<StepExchange>(group, plan_of({65}), options);
      if (job.rank() == ranks - 1) {
        for (int other = 0; other < ranks - 1; ++other) await_wait_of(job, other);
        exchange.reset();
        return;
      }
      const auto begin = Clock::now();
      try {
        exchange->protocol().run_collectives([&] { group.barrier({.label = "evaluate()"}); });
        ADD_FAILURE() << "nobody came";
      } catch (const Mismatch& error) {
        EXPECT_THAT(error.what(), HasSubstr("ended its part after step 0"));
        ++told;
      }
      EXPECT_LT(Clock::now() - begin, seconds(25)) << "half of the deadline";
      EXPECT_THROW(exchange->protocol().run_collectives([] {}), Mismatch)
          << "the exchange has ended";
    });
    EXPECT_EQ(told, ranks - 1);
  }
}

// An exception that leaves the object drops a step first, and so does fail(): the others, who have
// not come to that step, are told all the same. `late`: they come when it has happened.
void expect_told_of(const std::function<void(std::unique_ptr<StepExchange>)>& end,
                    const std::string& why, bool late) {
  std::atomic<bool> ended{false};
  std::atomic<int> told{0};
  run_thread_ranks(3, [&](const Job& job) {
    const Group group(job);
    auto exchange = std::make_unique<StepExchange>(group, plan_of({65}), ExchangeOptions());
    if (job.rank() == 2) {
      for (int other = 0; other < 2 && !late; ++other) await_wait_of(job, other);
      end(std::move(exchange));
      ended = true;
      while (told < 2) std::this_thread::sleep_for(milliseconds(1));  // it lives on
      return;
    }
    while (late && !ended) std::this_thread::sleep_for(milliseconds(1));
    const auto begin = Clock::now();
    try {
      exchange->protocol().run_collectives([&] { group.barrier({.label = "evaluate()"}); });
      ADD_FAILURE() << "one worker did not come";
    } catch (const Mismatch& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2 ended its part after step 1 (" + why + ")"));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    EXPECT_LT(Clock::now() - begin, seconds(25));
    ++told;
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(EndedMeanwhile, ByAnExceptionIsNoticedToo) {
  const auto leave = [](std::unique_ptr<StepExchange> exchange) {
    try {
      const auto inner = std::move(exchange);
      throw std::runtime_error("the program's own");
    } catch (const std::runtime_error&) {
    }
  };
  for (const bool late : {false, true}) expect_told_of(leave, "it was left by an exception", late);
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(EndedMeanwhile, AfterAStepThatFailedIsNoticedToo) {
  const auto fail = [](std::unique_ptr<StepExchange> exchange) {
    exchange->protocol().fail("no batch");
    exchange.reset();
  };
  for (const bool late : {false, true}) expect_told_of(fail, "no batch", late);
}

// Who has done its part may end while the others are still at it.
TEST(EndedMeanwhile, AfterItsPartItIsNoError) {
  for (int round = 0; round < 50; ++round) {
    run_thread_ranks(3, [&](const Job& job) {
      const Group group(job);
      auto exchange = std::make_unique<StepExchange>(group, plan_of({65}), ExchangeOptions());
      std::vector<float> values(20000, 1);
      exchange->protocol().run_collectives([&] {
        group.all_reduce({values.data(), 20000, DType::float32}, Reduction::sum);
        group.barrier();
      });
      exchange.reset();
      EXPECT_EQ(values.back(), 3);
    });
  }
}

}  // namespace
}  // namespace tutti::test
