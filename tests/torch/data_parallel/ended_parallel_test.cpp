// A DataParallel that ends too early says so: a temporary, or one that a helper function made, left
// every worker to train a model of its own.

#include <chrono>
#include <memory>
#include <thread>
#include <type_traits>

#include "job/job_state.h"
#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::ended_parallel_cases {
namespace {

void backward(torch::nn::Sequential& model, const Job& job) {
  model->zero_grad();
  Batch(5, static_cast<std::uint64_t>(1 + job.rank())).loss(model, 0, 5).backward();
}

constexpr const char* kUnused = "warning: the DataParallel of \"net\" has ended without a step";
constexpr const char* kLeft =
    "warning: a backward reaches parameters of \"net\", whose DataParallel has ended";

void wrap_in_a_helper(const Job& job, torch::nn::Module& model) {
  const DataParallel parallel(job, model, {.name = "net"});
}

// promise: data_parallel.h#DataParallel
TEST(EndedParallel, OneThatDiesInAHelperWarnsAndSoDoesTheNextBackward) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      const LogCapture log;
      torch::manual_seed(1);
      auto model = mlp();
      wrap_in_a_helper(job, *model);
      EXPECT_EQ(log.count(kUnused), job.rank() == 0 ? 1 : 0);
      EXPECT_EQ(log.count(kLeft), 0);
      for (int step = 0; step < 3; ++step) backward(model, job);
      // One worker's gradients are all there are.
      EXPECT_EQ(log.count(kLeft), workers > 1 ? 1 : 0);
      EXPECT_TRUE(model->parameters()[0].grad().defined());
    });
  }
}

// promise: data_parallel.h#DataParallel
TEST(EndedParallel, WhatFollowsAndWhatWasMovedIsQuiet) {
  on_workers(2, [](const Job& job) {
    const LogCapture log;
    torch::manual_seed(1);
    auto model = mlp();
    {
      DataParallel first(job, *model, {.name = "net"});
      DataParallel moved(std::move(first));
      backward(model, job);
    }
    {  // the next one takes the gradients
      DataParallel again(job, *model, {.name = "net"});
      backward(model, job);
    }
    {
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
      trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(4, 1)); });
    }
    {  // with an averaging policy they are each worker's own
      DataParallel parallel(job, *model, {.name = "net"});
      backward(model, job);
    }
    {
      AveragedParallel averaging(job, *model, local_sgd(1), {.name = "net"});
      backward(model, job);
      averaging.average_parameters();
    }
    // Only used to send parameters and values.
    {
      DataParallel parallel(job, *model, {.name = "net"});
      parallel.mean(1);
    }
    {
      DataParallel parallel(job, *model, {.name = "net"});
      parallel.sync_buffers();
    }
    EXPECT_EQ(log.count("warning: "), 0);
  });
}

TEST(EndedParallel, AnExceptionOnTheWayIsEnough) {
  on_workers(2, [](const Job& job) {
    const LogCapture log;
    auto model = mlp();
    try {
      const DataParallel parallel(job, *model, {.name = "net"});
      throw std::runtime_error("elsewhere");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(log.count("warning: "), 0);
  });
}

/// g++ warns of `tutti::DataParallel(job, *model);`, which -Werror would turn into an error here.
TEST(EndedParallel, OneThatWasMovedFromSaysSo) {
  on_workers(1, [](const Job& job) {
    auto model = mlp();
    DataParallel first(job, *model);
    const DataParallel second(std::move(first));
    EXPECT_THAT(text_of<InvalidArgument>([&] { first.mean(1); }),
                testing::HasSubstr("was moved from"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { first.next_weight(1); }),
                testing::HasSubstr("was moved from"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { first.report(); }),
                testing::HasSubstr("was moved from"));
    EXPECT_EQ(second.mean(2.5), 2.5);
  });
}

TEST(EndedParallel, CannotBeCopied) {
  EXPECT_FALSE(std::is_copy_constructible_v<DataParallel>);
  EXPECT_TRUE(std::is_nothrow_move_constructible_v<DataParallel>);
}

using namespace std::chrono_literals;

/// Rank 1 ends its object while rank 0 is in a call that rank 1 never makes; both processes live.
/// The deadline is ten minutes.
template <class Make>
void expect_noticed_at_once(const Make& make, const std::string& text) {
  on_workers(2, [&](const Job& job) {
    const Group other(job, "other");
    auto model = mlp();
    const auto begin = std::chrono::steady_clock::now();
    {
      auto [object, call] = make(other, job, model);
      if (job.rank() == 0) {
        EXPECT_THAT(text_of<Mismatch>(call), ::testing::HasSubstr(text));
      } else {
        // Until rank 0 sleeps in its call.
        while (job.state()->board().sleepers.load() == 0 &&
               std::chrono::steady_clock::now() - begin < 20s) {
          std::this_thread::yield();
        }
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
    Group(job, "end").barrier();
  });
}

// promise: errors#errors-and-fault-tolerance-what-is-still-usable-after-each-error
TEST(EndedParallel, InsideOthersCollectivesIsNoticedAtOnce) {
  using Call = std::function<void()>;
  const auto wrapped = [](const Group& group, torch::nn::Sequential& model) {
    return std::make_shared<DataParallel>(group, *model, DataParallelOptions{.name = "net"});
  };
  const std::string ended = "\"net\": rank 1 ended its part";
  expect_noticed_at_once(
      [&](const Group& group, const Job&, auto& model) {
        auto parallel = wrapped(group, model);
        return std::pair(parallel, Call([p = parallel.get()] { p->mean(1); }));
      },
      ended);
  expect_noticed_at_once(
      [&](const Group& group, const Job&, auto&) {
        auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(3);
        auto parallel =
            std::make_shared<DataParallel>(group, *norm, DataParallelOptions{.name = "net"});
        return std::pair(std::pair(norm, parallel),
                         Call([p = parallel.get()] { p->sync_buffers(); }));
      },
      ended);
  expect_noticed_at_once(
      [&](const Group& group, const Job&, auto& model) {
        auto parallel = wrapped(group, model);
        return std::pair(parallel, Call([&model] { Batch(3, 1).loss(model, 0, 3).backward(); }));
      },
      ended);
  expect_noticed_at_once(
      [&](const Group& group, const Job&, auto& model) {
        auto trainer = std::make_shared<Trainer>(group, *model, Sgd{.lr = 0.1},
                                                 TrainerOptions{.shards = 2, .name = "net"});
        return std::pair(trainer, Call([t = trainer.get()] {
                           t->evaluate(4, 1, [](const auto&, ShardMetrics&) {});
                         }));
      },
      ended);
}

TEST(EndedParallel, RightAfterACollectiveIsNoError) {
  on_workers(3, [](const Job& job) {
    const Group group(job, "other");
    for (int round = 0; round < 30; ++round) {
      auto model = mlp();
      DataParallel parallel(group, *model);
      EXPECT_EQ(parallel.mean(job.rank()), 1);
    }
  });
}

}  // namespace
}  // namespace tutti::test::ended_parallel_cases
