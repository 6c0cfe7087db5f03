// What fails where an engine adds gradients up, and what is refused.

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "sums/fast_workers.h"
#include "support/log_capture.h"

namespace tutti::test::fast_failures_cases {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;

/// A sum over one worker.
class NoEngine : public SumEngine {
 public:
  explicit NoEngine(const Job& job) : rank_(job.rank()), size_(job.size()) {}
  std::string name() const override { return "none"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(const torch::Tensor&) override {}
  bool finished() override { return true; }
  void abort() noexcept override {}

 private:
  int rank_;
  int size_;
};

/// Rank 1 of three is killed where `dies` has it; the others learn so, and who it was.
void expect_loss(const std::function<void(const Job&, WatchedEngine&, nn::Sequential&)>& dies) {
  if (!has_gloo()) GTEST_SKIP() << "no Gloo in this build: libgloo-dev is missing";
  const auto folder =
      std::filesystem::temp_directory_path() / ("tutti_lost_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const auto outcome = run_process_ranks(3, [&](const Job& job) {
    at::set_num_threads(1);
    auto model = mlp();
    const auto engine = std::make_shared<WatchedEngine>(
        c10d_engine(gloo_backend(job.rank(), job.size(), (folder / "store").string())));
    DataParallel parallel(job, *model, {.sum = Sum::fast, .engine = engine, .first_fusion = 1});
    Batch(3, 1).loss(model, 0, 3).backward();
    if (job.rank() == 1) dies(job, *engine, model);
    model->zero_grad();
    const auto begin = steady_clock::now();
    try {
      Batch(3, 2).loss(model, 0, 3).backward();
      ADD_FAILURE() << "a step without rank 1";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), 1) << error.what();
    }
    EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(engine->aborted, 1);
    EXPECT_THROW(Batch(3, 2).loss(model, 0, 3).backward(), PeerLost);
  });
  std::filesystem::remove_all(folder);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(outcome.ranks[static_cast<std::size_t>(rank)].good()) << outcome.describe();
  }
  EXPECT_EQ(outcome.ranks[1].signal, SIGKILL) << outcome.describe();
}

// promise: gpu#which-sum, sum_engine.h#abort
TEST(FastFailures, APeerThatIsKilledInItsBackwardIsLostWithinTheDeadline) {
  expect_loss([](const Job&, WatchedEngine& engine, nn::Sequential&) {
    engine.on_begin = [](const torch::Tensor&) { std::raise(SIGKILL); };
  });
}

TEST(FastFailures, SoIsOneThatIsKilledAsAllSumsAreOnTheirWay) {
  expect_loss([](const Job&, WatchedEngine& engine, nn::Sequential&) {
    engine.on_finished = []() -> bool {
      std::raise(SIGKILL);
      return false;
    };
  });
}

TEST(FastFailures, ThatGlooWouldEndOthersToIsSaid) {
  if (!has_gloo()) GTEST_SKIP() << "no Gloo in this build: libgloo-dev is missing";
  on_gloo_workers(1, [](const Job& job, const auto& make_engine) {
    const LogCapture log;
    make_engine(job);  // the backend's maker ignores it
    EXPECT_EQ(log.count("SIGPIPE"), 0);
  });
  on_workers(1, [](const Job& job) {
    const LogCapture log;
    const auto file =
        std::filesystem::temp_directory_path() / ("tutti_pipe_" + std::to_string(getpid()));
    const auto backend = gloo_backend(job.rank(), job.size(), file.string());
    std::signal(SIGPIPE, SIG_DFL);
    c10d_engine(backend);
    EXPECT_EQ(log.count("std::signal(SIGPIPE, SIG_IGN)"), 1);
    std::filesystem::remove(file);
  });
}

TEST(FastFailures, AnEngineThatNeverFinishesIsATimeout) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto engine = std::make_shared<WatchedEngine>(std::make_shared<NoEngine>(job));
    engine->on_finished = [] { return false; };
    DataParallel parallel(
        job, *model, {.sum = Sum::fast, .engine = engine, .deadline = std::chrono::seconds(1)});
    EXPECT_THAT(text_of<Timeout>([&] { Batch(3, 1).loss(model, 0, 3).backward(); }),
                HasSubstr("the sums of none in step 1 of \"model\""));
    EXPECT_EQ(engine->aborted, 1);
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the other one's time is up as well
  });
}

TEST(FastFailures, AnEngineThatFailsIsNotUsedAgain) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const auto engine = std::make_shared<WatchedEngine>(std::make_shared<NoEngine>(job));
    // The other one's hears nothing of it.
    engine->on_finished = [&]() -> bool {
      if (job.rank() == 1) throw std::runtime_error("a cable is out");
      return false;
    };
    DataParallel parallel(job, *model, {.sum = Sum::fast, .engine = engine});
    for (int step = 1; step <= 2; ++step) {
      const auto run = [&] { Batch(3, 1).loss(model, 0, 3).backward(); };
      if (job.rank() == 1) {
        EXPECT_THAT(text_of<DeviceFailed>(run),
                    AllOf(HasSubstr("the engine none of \"model\" has failed: a cable is out"),
                          HasSubstr("make another one")));
        EXPECT_EQ(engine->aborted, 1);
      } else {
        EXPECT_THAT(text_of<PeerFailed>(run), HasSubstr("rank 1 failed"));
      }
    }
  });
}

TEST(FastFailures, AnEngineThatWasAbortedOrIsAnothersIsRefused) {
  on_workers(2, [](const Job& job) {
    auto model = mlp(), other = mlp();
    const auto engine = std::make_shared<WatchedEngine>(std::make_shared<NoEngine>(job));
    const DataParallelOptions options{.sum = Sum::fast, .engine = engine};
    {
      DataParallel parallel(job, *model, options);
      EXPECT_THAT(text_of<InvalidArgument>([&] { DataParallel second(job, *other, options); }),
                  HasSubstr("is that of another DataParallel: make one of its own"));
      Batch(3, 1).loss(model, 0, 3).backward();
    }
    EXPECT_FALSE(engine->has_ended());
    {
      DataParallel parallel(job, *model, options);  // one after another
      if (job.rank() == 1) engine->on_begin = [](const torch::Tensor&) { throw 5; };
      engine->on_finished = [] { return false; };
      const auto run = [&] { Batch(3, 1).loss(model, 0, 3).backward(); };
      for (int step = 2; step <= 3; ++step) {
        model->zero_grad();
        if (job.rank() == 1) {
          EXPECT_THAT(text_of<DeviceFailed>(run), HasSubstr("make another one"));
        } else {
          EXPECT_THAT(text_of<PeerFailed>(run), HasSubstr("make another one"));
        }
      }
      EXPECT_EQ(engine->has_ended(), job.rank() == 1);
    }
    // Rank 0's was too, because its sums had not finished when its DataParallel ended.
    EXPECT_THAT(text_of<InvalidArgument>([&] { DataParallel third(job, *model, options); }),
                HasSubstr("has been aborted: make one of its own"));
    auto others = options;
    if (job.rank() == 1) others.engine = std::make_shared<NoEngine>(job);
    EXPECT_THAT(text_of<Mismatch>([&] { DataParallel fourth(job, *model, others); }),
                HasSubstr("by none, which has been aborted"));
  });
}

TEST(FastFailures, WhatEnginesDoNotAddUpIsRefusedByName) {
  on_workers(1, [](const Job& job) {
    const auto engine = std::make_shared<NoEngine>(job);
    const auto text_with = [&](DataParallelOptions options) {
      options.sum = Sum::fast;
      if (!options.engine) options.engine = engine;
      auto model = mlp();
      return text_of<Unsupported>([&] { DataParallel parallel(job, *model, options); });
    };
    EXPECT_THAT(text_with({.compression = {.codec = half_codec()}}),
                HasSubstr("Sum::fast of \"model\" takes dense gradients alone: it has a codec"));
    EXPECT_THAT(
        text_with({.row_sparse = [](const std::string& name) { return name == "0.weight"; }}),
        HasSubstr("\"0.weight\" is row-sparse"));
    EXPECT_THAT(
        text_with({.placement = [](const std::string&) { return std::optional<std::int64_t>(0); }}),
        HasSubstr("\"0.weight\" has an owner"));
    auto model = mlp();
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { DataParallel parallel(job, *model, {.sum = Sum::fast}); }),
        HasSubstr("needs an engine"));
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { DataParallel parallel(job, *model, {.engine = engine}); }),
        HasSubstr("Sum::fast alone"));
    EXPECT_THROW(c10d_engine({}), InvalidArgument);
  });
}

TEST(FastFailures, EnginesOfOtherWorkersAreRefused) {
  on_workers(2, [](const Job& job) {
    struct Swapped : NoEngine {
      using NoEngine::NoEngine;
      int rank() const override { return 1 - NoEngine::rank(); }
    };
    auto model = mlp();
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  DataParallel parallel(
                      job, *model, {.sum = Sum::fast, .engine = std::make_shared<Swapped>(job)});
                }),
                AllOf(HasSubstr("has rank"), HasSubstr("of 2, and has to have rank")));
  });
}

TEST(FastFailures, WorkersAgreeOnTheSum) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    DataParallelOptions options;
    if (job.rank() == 1) options = {.sum = Sum::fast, .engine = std::make_shared<NoEngine>(job)};
    EXPECT_THAT(text_of<Mismatch>([&] { DataParallel parallel(job, *model, options); }),
                AllOf(HasSubstr("setting \"sum\" is fast, by none, not exact")));
  });
}

}  // namespace
}  // namespace tutti::test::fast_failures_cases
