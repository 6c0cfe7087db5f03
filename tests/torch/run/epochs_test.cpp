// Epochs of a Trainer over data sets of torch::data: counted, in the order that was asked for,
// evaluated through a loader, the same bytes on any number of workers.

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "support/debug_log.h"
#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::epochs_cases {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kSize = 50;

/// 50 samples of 6 numbers; the target is the sample's index.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    return {torch::randn({6}, at::make_generator<at::CPUGeneratorImpl>(index)),
            torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return kSize; }
};

auto batches() {
  return Numbers()
      .map(torch::data::transforms::TensorLambda<>([](const auto& x) { return (x - 0.1) / 2; }))
      .map(torch::data::transforms::Stack<>());
}

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 30), torch::nn::BatchNorm1d(30),
                               torch::nn::Dropout(0.3), torch::nn::Linear(30, 3));
}

struct Training {
  explicit Training(const Job& job, SampleOrder order = {}, std::int64_t audit_every = 1)
      : trainer(job, *model, Adam{.lr = 1e-2},
                {.shards = 4,
                 .seed = 2,
                 .order = std::move(order),
                 .schedule = Schedule::per_epoch(Schedule::step_decay(1, 0.5)),
                 .audit_every = audit_every}) {}
  auto compute() {
    return [this](Shard& shard, torch::data::Example<>& batch) {
      if (!shard.is_audit()) {
        const auto* const first = batch.target.data_ptr<std::int64_t>();
        seen.insert(seen.end(), first, first + batch.target.numel());
      }
      return shard.loss(model->forward(batch.data).square().mean(), batch.data.size(0));
    };
  }
  StepResult step() { return trainer.step(loader, compute()); }
  torch::nn::Sequential model = [] {
    torch::manual_seed(1);
    return net();
  }();
  Trainer trainer;
  ShardLoader<decltype(batches())> loader{batches(), 4};  // steps of 16: four in an epoch
  std::vector<std::int64_t> seen;                         ///< by this worker's shards
};

/// Rates of the steps of two epochs, and the state at their end.
std::string two_epochs(int workers, const SampleOrder& order, std::int64_t audit_every = 1) {
  return text_of_rank_0(workers, [&](const Job& job) {
    Training run(job, order, audit_every);
    std::string text;
    EXPECT_EQ(run.trainer.epoch(), 0);
    for (int epoch = 1; epoch <= 2; ++epoch) {
      const auto last = run.trainer.run_epoch(
          run.loader, run.compute(),
          [&](const StepResult& result) { text += std::to_string(result.rate_factor) + " "; });
      EXPECT_EQ(last.step, run.trainer.steps());
      EXPECT_EQ(run.trainer.epoch(), epoch);
    }
    return text + run.trainer.state_sha256();
  });
}

std::vector<SampleOrder> orders() {
  std::vector<double> weights(kSize);
  for (std::size_t i = 0; i < kSize; ++i) weights[i] = static_cast<double>(i % 3);
  return {SampleOrder::shuffled(), SampleOrder::sequential(), SampleOrder::weighted(weights, 71),
          SampleOrder("short", [](auto, std::int64_t epoch) {
            return std::vector<std::int64_t>(static_cast<std::size_t>(6 + 2 * epoch), 3 + epoch);
          })};
}

// promise: trainer.h#run_epoch, trainer.h#step
TEST(Epochs, EndWithTheSameBytesOnAnyNumberOfWorkersInAnyOrder) {
  std::set<std::string> results;
  for (const auto& order : orders()) {
    const auto alone = two_epochs(1, order);
    for (const int workers : {2, 3, 5})
      EXPECT_EQ(two_epochs(workers, order), alone) << order.text();
    EXPECT_EQ(two_epochs(2, order, /*audit_every=*/0), alone) << order.text();
    results.insert(alone);
  }
  EXPECT_EQ(results.size(), 4U);
}

// promise: schedule.h#per_epoch
TEST(Epochs, LearningRatesOfASchedulePerEpochFollowTheData) {
  EXPECT_THAT(two_epochs(2, {}),
              ::testing::StartsWith("1.000000 1.000000 1.000000 1.000000 0.500000 0.500000 "
                                    "0.500000 0.500000 "));
}

// promise: sample_order.h#SampleOrder, shard_loader.h#ShardLoader
TEST(Epochs, ShardsGetTheSamplesOfTheOrder) {
  for (const auto& order : orders()) {
    on_workers(1, [&](const Job& job) {
      Training run(job, order);
      run.trainer.run_epoch(run.loader, run.compute());
      EXPECT_EQ(run.seen, order.of_epoch(kSize, 2, 0)) << order.text();
      run.seen.clear();
      run.trainer.run_epoch(run.loader, run.compute());
      EXPECT_EQ(run.seen, order.of_epoch(kSize, 2, 1)) << order.text();
    });
  }
}

// promise: trainer.h#run_epoch
TEST(Epochs, ARunThatGoesOnInTheMiddleOfAnEpochEndsWithTheSameBytes) {
  for (const auto& order : orders()) {
    const TemporaryFolder folder;
    const auto go_on = [&](int workers, std::int64_t epochs, std::int64_t steps) {
      return text_of_rank_0(workers, [&](const Job& job) {
        Training run(job, order);
        run.trainer.load(folder.file("run"));
        while (run.trainer.epoch() < epochs && run.trainer.steps() < steps) run.step();
        if (steps < 100) run.trainer.save(folder.file("run"));
        return run.trainer.state_sha256();
      });
    };
    const auto straight = text_of_rank_0(1, [&](const Job& job) {
      Training run(job, order);
      while (run.trainer.epoch() < 3) run.step();
      return run.trainer.state_sha256();
    });
    go_on(2, 3, 2);
    EXPECT_EQ(go_on(3, 3, 100), straight) << order.text();
  }
}

/// What docs/data.md shows, for as many epochs.
std::string train_and_save(const Job& job, const std::string& folder, std::int64_t epochs) {
  torch::manual_seed(1);
  auto model = net();
  ShardLoader loader(batches(), 4);
  const std::vector<double> weights(kSize, 1.5);
  const auto compute = [&](Shard& shard, torch::data::Example<>& batch) {
    return shard.loss(model->forward(batch.data).square().mean(), batch.data.size(0));
  };

  tutti::TrainerOptions options{.shards = 4, .seed = 1};
  options.order = tutti::SampleOrder::weighted(weights, /*samples=*/80);
  options.schedule = tutti::Schedule::per_epoch(tutti::Schedule::step_decay(2, 0.5));
  tutti::Trainer trainer(job, *model, tutti::Sgd{.lr = 0.1}, options);
  trainer.load(folder);
  while (trainer.epoch() < epochs) {
    const auto result = trainer.step(loader, compute);
    if (result.step % 3 == 0) trainer.save(folder, {.keep = 2});
  }
  return trainer.state_sha256() + " " + std::to_string(trainer.steps());
}

// promise: trainer.h#epoch
TEST(Epochs, TheLoopOfThePageGoesOnFromItsCheckpoints) {
  const TemporaryFolder folder;
  const auto train = [&](int workers, const std::string& name, std::int64_t epochs) {
    return text_of_rank_0(
        workers, [&](const Job& job) { return train_and_save(job, folder.file(name), epochs); });
  };
  const auto straight = train(1, "straight", 4);
  EXPECT_THAT(straight, ::testing::EndsWith(" 20"));  // 4 · epoch_steps(80, 16)
  train(2, "stopped", 1);                             // its last checkpoint is that of step 3
  EXPECT_EQ(train(3, "stopped", 4), straight);
}

// promise: sample_order.h#SampleOrder
TEST(Epochs, ACheckpointOfAnotherOrderIsRefused) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    {
      Training run(job, SampleOrder::sequential());
      run.step();
      run.trainer.save(folder.file("run"));
    }
    const DebugLog debug;
    const LogCapture log;
    Training other(
        job, SampleOrder("by length", [](auto, auto) { return std::vector<std::int64_t>{0}; }));
    EXPECT_EQ(log.count(", order by length, "), job.rank() == 0 ? 1 : 0);
    EXPECT_THAT(text_of<InvalidArgument>([&] { other.trainer.load(folder.file("run")); }),
                HasSubstr("order is sequential in the checkpoint, by length here"));
    Training shuffled(job);
    EXPECT_THAT(text_of<InvalidArgument>([&] { shuffled.trainer.load(folder.file("run")); }),
                HasSubstr("order"));
  });
}

/// A step whose shards ask for no samples.
StepResult warm_up(Training& run) {
  return run.trainer.step([&](Shard& shard) {
    return shard.loss(run.model->forward(Batch(4, shard.seed()).x).square().mean());
  });
}

// A loop over epoch() was refused after a warm-up.
// promise: trainer.h#epoch
TEST(Epochs, StepsWithoutDataCountToNoneAlsoWhereARunGoesOn) {
  // Two steps before the data, and one after each second step with some.
  const auto step = [](Training& run) {
    const auto steps = run.trainer.steps();
    const bool warms = steps < 2 || steps % 3 == 1;
    const auto result = warms ? warm_up(run) : run.step();
    EXPECT_FALSE(warms && result.ends_epoch);
  };
  std::vector<std::int64_t> seen;
  const auto straight = text_of_rank_0(1, [&](const Job& job) {
    Training run(job);
    while (run.trainer.epoch() < 2) step(run);
    auto expected = SampleOrder().of_epoch(kSize, 2, 0);
    const auto second = SampleOrder().of_epoch(kSize, 2, 1);
    expected.insert(expected.end(), second.begin(), second.end());
    EXPECT_EQ(run.seen, expected);
    return run.trainer.state_sha256() + " " + std::to_string(run.trainer.steps());
  });
  // In the warm-up, at its end, inside an epoch, at its end, after a step without data behind it.
  for (const std::int64_t stop : {1, 2, 4, 5, 7, 8}) {
    const TemporaryFolder folder;
    const auto go_on = [&](int workers, std::int64_t until) {
      return text_of_rank_0(workers, [&](const Job& job) {
        Training run(job);
        run.trainer.load(folder.file("run"));
        while (run.trainer.epoch() < 2 && run.trainer.steps() < until) step(run);
        if (until < 100) run.trainer.save(folder.file("run"));
        return run.trainer.state_sha256() + " " + std::to_string(run.trainer.steps());
      });
    };
    go_on(2, stop);
    EXPECT_EQ(go_on(3, 100), straight) << stop;
  }
}

// promise: trainer.h#epoch
TEST(Epochs, ALoopInWhichNoShardAsksForDataIsWarnedOf) {
  on_workers(2, [](const Job& job) {
    auto model = mlp();
    const LogCapture log;
    Trainer trainer(job, *model, Adam{}, {.shards = 2, .name = "blind"});
    const auto step = [&] {
      trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(12, 1)); });
    };
    for (int blind = 0; blind < 99; ++blind) step();  // nobody asks how far the run is
    while (trainer.epoch() < 1 && trainer.steps() < 197) step();
    EXPECT_EQ(log.count("warning: "), 0);
    while (trainer.epoch() < 1 && trainer.steps() < 400) step();
    EXPECT_EQ(trainer.epoch(), 0);
    EXPECT_EQ(log.count("warning: "), job.rank() == 0 ? 1 : 0);
    EXPECT_EQ(
        log.count("epoch() of \"blind\" stands at 0, and was asked for after each of 100 steps "
                  "in which no shard asked for samples"),
        job.rank() == 0 ? 1 : 0);
  });
}

TEST(Epochs, StepsWithDataBetweenOthersAreNotWarnedOf) {
  on_workers(1, [](const Job& job) {
    Training run(job);
    const LogCapture log;
    for (int round = 0; round < 3; ++round) {
      for (int step = 0; step < 90; ++step) {
        warm_up(run);
        EXPECT_EQ(run.trainer.epoch(), 0);
        EXPECT_EQ(run.trainer.epoch(), 0);  // asked twice
      }
      run.step();
    }
    EXPECT_EQ(log.count("warning: "), 0);
  });
}

// promise: sample_order.h#epoch_steps
TEST(Epochs, AfterStepsWithoutDataTheFirstOneIsWhole) {
  on_workers(2, [](const Job& job) {
    Training run(job);
    EXPECT_FALSE(warm_up(run).ends_epoch);
    const auto last = run.trainer.run_epoch(run.loader, run.compute());
    EXPECT_TRUE(last.ends_epoch);
    EXPECT_EQ(last.step, 1 + epoch_steps(kSize, 16));
    EXPECT_EQ(run.trainer.epoch(), 1);
  });
}

/// So many of those samples.
class Some : public torch::data::datasets::Dataset<Some> {
 public:
  explicit Some(std::size_t size) : size_(size) {}
  torch::data::Example<> get(std::size_t index) override { return Numbers().get(index); }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

TEST(Epochs, ALoaderOfAnotherSizeInsideOneIsRefusedWithBothSizes) {
  on_workers(2, [](const Job& job) {
    Training run(job);
    ShardLoader other(Some(70).map(torch::data::transforms::Stack<>()), 4);
    run.step();
    const auto before = run.trainer.state_sha256();
    EXPECT_THAT(text_of<InvalidArgument>([&] { run.trainer.step(other, run.compute()); }),
                AllOf(HasSubstr("the data set has 70 samples, but epoch 0 began with 50"),
                      HasSubstr("between epochs only")));
    EXPECT_EQ(run.trainer.state_sha256(), before);
    while (run.trainer.epoch() < 1) run.step();
    EXPECT_TRUE(run.trainer.step(other, run.compute()).applied);  // the next epoch's
  });
}

TEST(Epochs, LoadersOfTwoSizesInAStepAreRefusedWithBothSizes) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      Training run(job);
      ShardLoader other(Some(70).map(torch::data::transforms::Stack<>()), 4);
      const auto before = run.trainer.state_sha256();
      const auto text = text_of<Error>([&] {
        run.trainer.step([&](Shard& shard) {
          auto batch = shard.index() < 2 ? run.loader.next(shard) : other.next(shard);
          return run.compute()(shard, *batch);
        });
      });
      EXPECT_THAT(text, HasSubstr("4 of 70"));
      EXPECT_THAT(text, HasSubstr("4 of 50"));
      EXPECT_EQ(run.trainer.state_sha256(), before);
      EXPECT_TRUE(run.step().applied);
    });
  }
}

// promise: shard_loader.h#read_alone
TEST(Epochs, AnExceptionInAClosureLeavesTheStepToBeRepeated) {
  on_workers(2, [](const Job& job) {
    Training run(job);
    Training other(job);
    for (int step = 0; step < 3; ++step) other.step();
    run.step();
    EXPECT_ANY_THROW(run.trainer.step(run.loader, [&](Shard& shard, auto&) -> ShardAnswer {
      if (shard.index() == 3) throw std::domain_error("no");
      return shard.nothing();
    }));
    run.step();
    run.step();
    EXPECT_EQ(run.trainer.state_sha256(), other.trainer.state_sha256());
  });
}

// promise: shard_loader.h#evaluate, trainer.h#evaluate
TEST(EvaluationOverALoader, GivesTheSameBytesOnAnyNumberOfWorkersAndThoseOfAPlainLoop) {
  std::set<std::string> results;
  for (const int workers : {1, 2, 3, 5}) {
    results.insert(text_of_rank_0(workers, [&](const Job& job) {
      Training run(job);
      run.step();
      ShardLoader loader(batches(), 7);  // the last batch has one sample
      const auto metrics =
          run.trainer.evaluate(loader, [&](torch::data::Example<>& batch, ShardMetrics& metrics) {
            EXPECT_FALSE(run.model->is_training());
            metrics.sum("value", run.model->forward(batch.data).sum().item<double>());
            metrics.gather("sample", batch.target[0].item<double>());
          });
      EXPECT_TRUE(run.model->is_training());
      EXPECT_THAT(metrics.gathered("sample"), ElementsAre(0, 7, 14, 21, 28, 35, 42, 49));
      double plain = 0;
      const torch::NoGradGuard no_grad;
      run.model->eval();
      const auto plain_loader =
          torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(batches(), 7);
      for (auto& batch : *plain_loader) {
        plain += run.model->forward(batch.data).sum().item<double>();
      }
      EXPECT_NEAR(metrics["value"], plain, 1e-9);
      const auto value = metrics["value"];
      return std::string(reinterpret_cast<const char*>(&value), sizeof value) +
             run.trainer.state_sha256();
    }));
  }
  EXPECT_EQ(results.size(), 1U);
}

/// Copies share what one thread at a time may use, as a file's position.
class OneAtATime : public torch::data::datasets::Dataset<OneAtATime> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    if (users_->fetch_add(1) != 0) throw std::logic_error("two threads read at once");
    torch::sort(torch::arange(100000).bitwise_xor(77));  // takes a while
    --*users_;
    return Numbers().get(index);
  }
  std::optional<std::size_t> size() const override { return kSize; }

 private:
  std::shared_ptr<std::atomic<int>> users_ = std::make_shared<std::atomic<int>>(0);
};

/// Notes which threads read.
class Watched : public torch::data::datasets::Dataset<Watched> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    if (index == 33 && notes_->broken) throw std::domain_error("sample 33 cannot be read");
    const std::lock_guard lock(notes_->mutex);
    ++notes_->read[std::this_thread::get_id()];
    return Numbers().get(index);
  }
  std::optional<std::size_t> size() const override { return kSize; }
  struct Notes {
    std::mutex mutex;
    std::map<std::thread::id, int> read;
    std::atomic<bool> broken = false;
  };
  std::shared_ptr<Notes> notes() const { return notes_; }

 private:
  std::shared_ptr<Notes> notes_ = std::make_shared<Notes>();
};

// promise: shard_loader.h#evaluate
TEST(EvaluationOverALoader, ReadsAheadUpToTheEndOfThisWorkersBatches) {
  on_workers(3, [](const Job& job) {
    Training run(job);
    for (const std::int64_t prefetch : {0, 1, 4}) {
      const Watched data;
      ShardLoader loader(Watched(data).map(torch::data::transforms::Stack<>()), 7,
                         {.prefetch = prefetch});
      for (int times = 1; times <= 2; ++times) {
        const auto metrics = run.trainer.evaluate(loader, [&](auto& batch, ShardMetrics& metrics) {
          metrics.sum("targets", batch.target.sum().template item<double>());
        });
        EXPECT_EQ(metrics["targets"], 49 * 50 / 2);
        int mine = 0, all = 0;
        for (const auto& [thread, count] : data.notes()->read) {
          all += count;
          if (thread == std::this_thread::get_id()) mine = count;
        }
        const auto [begin, end] = share_of(8, job);  // batches, the last of one sample
        const auto samples = static_cast<int>(std::min<std::int64_t>(end * 7, kSize) - begin * 7);
        EXPECT_EQ(all, times * samples);
        EXPECT_EQ(mine, times * (prefetch == 0 ? samples : 7));
      }
    }
  });
}

// promise: shard_loader.h#next
TEST(EvaluationOverALoader, RandomNumbersOfATransformAreTheBatchsWhenNothingIsReadAhead) {
  const auto noisy = [] {
    return Numbers()
        .map(torch::data::transforms::TensorLambda<>(
            [](const auto& x) { return x + torch::randn_like(x); }))
        .map(torch::data::transforms::Stack<>());
  };
  const auto evaluate = [&](const Job& job, std::int64_t prefetch) {
    Training run(job);
    ShardLoader loader(noisy(), 7, {.prefetch = prefetch});
    return run.trainer.evaluate(loader, [](auto& batch, ShardMetrics& metrics) {
      metrics.sum("value", batch.data.sum().template item<double>());
    });
  };
  std::set<std::string> results;
  for (const int workers : {1, 2, 3}) {
    results.insert(text_of_rank_0(
        workers, [&](const Job& job) { return std::to_string(evaluate(job, 0)["value"]); }));
  }
  EXPECT_EQ(results.size(), 1U);
  on_workers(1, [&](const Job& job) {
    EXPECT_THAT(text_of<InvalidArgument>([&] { evaluate(job, 2); }),
                HasSubstr("the dataset draws from torch's generator"));
  });
}

// promise: shard_loader.h#ShardLoader
TEST(EvaluationOverALoader, WhatCannotBeReadFailsOnItsWorkerAndNoLonger) {
  on_workers(2, [](const Job& job) {
    Training run(job);
    const Watched data;
    ShardLoader loader(Watched(data).map(torch::data::transforms::Stack<>()), 7);
    const auto evaluate = [&] {
      return run.trainer.evaluate(loader,
                                  [](auto&, ShardMetrics& metrics) { metrics.sum("batches", 1); });
    };
    data.notes()->broken = true;
    if (job.rank() == 1) {
      EXPECT_EQ(text_of<std::domain_error>(evaluate), "sample 33 cannot be read");
    } else {
      EXPECT_THAT(text_of<PeerFailed>(evaluate), HasSubstr("sample 33 cannot be read"));
    }
    data.notes()->broken = false;
    EXPECT_EQ(evaluate()["batches"], 8);
  });
}

// promise: shard_loader.h#read
TEST(EvaluationOverALoader, DoesNotReadWhileTheLoaderReadsAhead) {
  on_workers(2, [](const Job& job) {
    Training run(job);
    ShardLoader loader(OneAtATime().map(torch::data::transforms::Stack<>()), 4, {.prefetch = 9});
    for (int times = 0; times < 3; ++times) {
      run.trainer.step(loader, run.compute());
      const auto metrics = run.trainer.evaluate(loader, [&](auto& batch, ShardMetrics& metrics) {
        metrics.sum("samples", static_cast<double>(batch.data.size(0)));
      });
      EXPECT_EQ(metrics["samples"], kSize);
    }
  });
}

}  // namespace
}  // namespace tutti::test::epochs_cases
