// Batches read ahead: the samples that the shards ask for, whatever is under way.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::shard_loader_cases {
namespace {

using ::testing::HasSubstr;

/// What all copies of a dataset share.
struct Notes {
  std::mutex mutex;
  std::set<std::thread::id> readers;
  std::atomic<bool> broken = false;
  std::atomic<int> read = 0;
};

/// 50 samples of 6 numbers; the target is the sample's index.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  explicit Numbers(std::shared_ptr<Notes> notes = std::make_shared<Notes>(), bool random = false)
      : notes_(std::move(notes)), random_(random) {}
  torch::data::Example<> get(std::size_t index) override {
    if (notes_->broken && index == 17) throw std::domain_error("sample 17 cannot be read");
    ++notes_->read;
    {
      const std::lock_guard lock(notes_->mutex);
      notes_->readers.insert(std::this_thread::get_id());
    }
    const auto seed = random_ ? torch::randint(1 << 30, {1}).item<std::int64_t>()
                              : static_cast<std::int64_t>(index);
    return {torch::randn(
                {6}, at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(seed))),
            torch::tensor(static_cast<std::int64_t>(index))};
  }
  torch::optional<std::size_t> size() const override { return 50; }

 private:
  std::shared_ptr<Notes> notes_;
  bool random_;
};

auto batches_of(Numbers numbers) {
  return std::move(numbers).map(torch::data::transforms::Stack<>());
}

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 70), torch::nn::Dropout(0.3),
                               torch::nn::Linear(70, 3));
}

/// The hash of the state after nine steps, more than two epochs; samples are checked.
std::string train(int workers, const LoaderOptions& options, bool random = false) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    Trainer trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 4, .seed = 2});
    ShardLoader loader(batches_of(Numbers(std::make_shared<Notes>(), random)), 4, options);
    while (trainer.steps() < 9) {
      trainer.step([&](Shard& shard) {
        const auto batch = loader.next(shard);
        const auto samples = shard.indices(50, 4);
        EXPECT_EQ(batch.has_value(), !samples.empty());
        if (!batch) return shard.nothing();
        EXPECT_TRUE(torch::equal(batch->target, torch::tensor(samples)));
        return shard.loss(model->forward(batch->data).square().mean(),
                          static_cast<double>(samples.size()));
      });
    }
    return trainer.state_sha256();
  });
}

// promise: shard_loader.h#ShardLoader, shard_loader.h#next, trainer.h#coming_indices
TEST(ShardLoader, HowFarIsReadAheadDoesNotShow) {
  const auto plain = train(1, {.prefetch = 0});
  EXPECT_EQ(plain.size(), 64U);
  for (const int workers : {1, 2, 3, 5}) {
    EXPECT_EQ(train(workers, {.prefetch = 1}), plain);
    EXPECT_EQ(train(workers, {.prefetch = 7, .threads = 3}), plain);
  }
}

// promise: shard_loader.h#next
TEST(ShardLoader, RandomNumbersOfADatasetAreTheShardsWhenNothingIsReadAhead) {
  EXPECT_EQ(train(3, {.prefetch = 0}, true), train(1, {.prefetch = 0}, true));
  EXPECT_NE(train(1, {.prefetch = 0}, true), train(1, {.prefetch = 0}, false));
}

/// One worker's trainer over a loader.
struct Reading {
  explicit Reading(const Job& job, const LoaderOptions& options = {}, bool random = false)
      : trainer(job, *model, Adam{.lr = 1e-2}, {.shards = 4, .seed = 2}),
        loader(batches_of(Numbers(notes, random)), 4, options) {}
  void step() {
    trainer.step([&](Shard& shard) {
      const auto batch = loader.next(shard);
      if (!batch) return shard.nothing();
      EXPECT_TRUE(torch::equal(batch->target, torch::tensor(shard.indices(50, 4))));
      return shard.loss(model->forward(batch->data).square().mean());
    });
  }
  std::shared_ptr<Notes> notes = std::make_shared<Notes>();
  torch::nn::Sequential model = net();
  Trainer trainer;
  ShardLoader<decltype(batches_of(Numbers()))> loader;
};

// promise: shard_loader.h#next
TEST(ShardLoader, ADatasetThatDrawsFromTorchsGeneratorIsRefused) {
  on_workers(1, [](const Job& job) {
    Reading run(job, {}, true);
    EXPECT_THAT(text_of<InvalidArgument>([&] { run.step(); }),
                HasSubstr("the dataset draws from torch's generator; read it with prefetch 0"));
    EXPECT_EQ(run.trainer.steps(), 0);
  });
}

/// Each copy notes which threads read it, and lets none go on before two have come, but the one
/// that made the first copy.
class Copied : public torch::data::datasets::Dataset<Copied> {
 public:
  struct Shared {
    std::mutex mutex;
    std::condition_variable two_have_come;
    std::vector<std::set<std::thread::id>> readers_of_copy;
    std::set<std::thread::id> others;
    std::thread::id first = std::this_thread::get_id();
  };
  explicit Copied(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) { be_another(); }
  Copied(const Copied& other) : Dataset(other), shared_(other.shared_) { be_another(); }
  torch::data::Example<> get(std::size_t index) override {
    std::unique_lock lock(shared_->mutex);
    const auto reader = std::this_thread::get_id();
    shared_->readers_of_copy[number_].insert(reader);
    if (reader != shared_->first) {
      shared_->others.insert(reader);
      shared_->two_have_come.notify_all();
      EXPECT_TRUE(shared_->two_have_come.wait_for(lock, std::chrono::seconds(20),
                                                  [&] { return shared_->others.size() > 1; }));
    }
    return Numbers().get(index);
  }
  torch::optional<std::size_t> size() const override { return 50; }

 private:
  void be_another() {
    const std::lock_guard lock(shared_->mutex);
    number_ = shared_->readers_of_copy.size();
    shared_->readers_of_copy.emplace_back();
  }
  std::shared_ptr<Shared> shared_;
  std::size_t number_ = 0;
};

// promise: shard_loader.h#ShardLoader
TEST(ShardLoader, EachOfItsThreadsHasACopyOfTheDataset) {
  on_workers(1, [](const Job& job) {
    auto model = net();
    const auto shared = std::make_shared<Copied::Shared>();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4});
    ShardLoader loader(Copied(shared).map(torch::data::transforms::Stack<>()), 4,
                       {.prefetch = 6, .threads = 3});
    trainer.run_epoch(loader, [&](Shard& shard, auto& batch) {
      return shard.loss(model->forward(batch.data).square().mean());
    });
    for (const auto& readers : shared->readers_of_copy) EXPECT_LE(readers.size(), 1U);
  });
}

// promise: shard_loader.h#prefetch, shard_loader.h#read_in_turn
TEST(ShardLoader, SoManyBatchesAreReadAheadAsWasAskedFor) {
  for (const std::int64_t prefetch : {0, 1, 3}) {
    on_workers(1, [&](const Job& job) {
      auto model = net();
      const auto notes = std::make_shared<Notes>();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4, .audit_every = 0});
      ShardLoader loader(batches_of(Numbers(notes)), 4, {.prefetch = prefetch});
      std::int64_t taken = 0;
      trainer.run_epoch(loader, [&](Shard& shard, auto& batch) {
        const auto all = static_cast<int>(std::min<std::int64_t>(50, (++taken + prefetch) * 4));
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (notes->read < all && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::yield();
        }
        EXPECT_EQ(notes->read, all);
        return shard.loss(model->forward(batch.data).square().mean());
      });
      EXPECT_EQ(taken, 13);
    });
  }
}

// promise: shard_loader.h#ShardLoader, shard_loader.h#batch
TEST(ShardLoader, ADatasetThatIsNotMappedGivesItsSamples) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4});
    ShardLoader loader(Numbers(), 4);
    EXPECT_EQ(loader.dataset_size(), 50);
    EXPECT_EQ(loader.batch(), 4);
    trainer.run_epoch(loader, [&](Shard& shard, std::vector<torch::data::Example<>>& batch) {
      std::vector<std::int64_t> samples;
      std::vector<torch::Tensor> rows;
      for (const auto& example : batch) {
        samples.push_back(example.target.item<std::int64_t>());
        rows.push_back(example.data);
      }
      EXPECT_EQ(samples, shard.indices(50, 4));
      return shard.loss(model->forward(torch::stack(rows)).square().mean());
    });
  });
}

TEST(ShardLoader, BatchesAreReadByOtherThreads) {
  on_workers(1, [](const Job& job) {
    Reading run(job, {.prefetch = 3, .threads = 2});
    run.step();
    run.step();
    const std::lock_guard lock(run.notes->mutex);
    EXPECT_GE(run.notes->readers.size(), 2U);  // this one for the first batch, and another
    EXPECT_GT(run.notes->read, 4);
  });
}

// A worker with threads that might use its job proves nothing: the others wait for their deadline.
// promise: shard_loader.h#ShardLoader, shard_loader.h#mark_reader_thread
TEST(ShardLoader, ItsThreadsDoNotHideWorkersThatWaitForOneAnother) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    ShardLoader loader(batches_of(Numbers()), 5, {.prefetch = 3});
    const auto compute = [&](Shard& shard, auto& batch) {
      return shard.loss(model->forward(batch.data).square().mean());
    };
    for (int step = 0; step < 3; ++step) trainer.step(loader, compute);
    const auto text = text_of([&] {
      if (job.rank() == 0) {
        trainer.evaluate(50, 5, [](const std::vector<std::int64_t>&, ShardMetrics&) {});
      } else {
        trainer.step(loader, compute);
      }
    });
    EXPECT_THAT(text, HasSubstr("workers wait for one another"));
  });
}

/// Bytes after so many epochs in an order of the program's own.
std::string bytes_after(const Job& job, int epochs, const SampleOrder& order, std::int64_t ahead) {
  torch::manual_seed(1);
  auto model = net();
  Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4, .order = order});
  ShardLoader loader(batches_of(Numbers()), 2, {.prefetch = ahead});
  while (trainer.epoch() < epochs) {
    trainer.run_epoch(loader, [&](Shard& shard, auto& batch) {
      return shard.loss(model->forward(batch.data).square().mean());
    });
  }
  return parameters_sha256(*model);
}

// A program that made as many orders as it trains epochs died in its last step, and a worker whose
// shards have no samples in shorter epochs looked for some for ever.
// promise: shard_loader.h#ShardLoader
TEST(ShardLoader, NoOrderIsAskedForBeforeItsEpochBegins) {
  const SampleOrder order("mine", [](std::int64_t, std::int64_t epoch) {
    const std::vector<std::vector<std::int64_t>> orders = {
        {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {4, 3, 2, 1}, {11, 12}};
    return orders.at(static_cast<std::size_t>(epoch));
  });
  std::set<std::string> seen;
  for (const int workers : {1, 2, 3}) {
    for (const std::int64_t ahead : {0, 2}) {
      seen.insert(text_of_rank_0(
          workers, [&](const Job& job) { return bytes_after(job, 3, order, ahead); }));
    }
  }
  EXPECT_EQ(seen.size(), 1U);
}

/// Of two data sets over one file: how many read it at a time.
struct OneFile {
  std::atomic<int> readers = 0;
  std::atomic<int> most = 0;
};
class Part : public torch::data::datasets::Dataset<Part> {
 public:
  explicit Part(std::shared_ptr<OneFile> file) : file_(std::move(file)) {}
  torch::data::Example<> get(std::size_t index) override {
    const int now = ++file_->readers;
    if (now > file_->most) file_->most = now;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    --file_->readers;
    return {torch::full({6}, static_cast<double>(index) / 100), torch::tensor(0)};
  }
  torch::optional<std::size_t> size() const override { return 40; }

 private:
  std::shared_ptr<OneFile> file_;
};

// The next epoch was read ahead while the model was evaluated: a file that both parts of the data
// share was read by two threads, and samples were mixed.
// promise: shard_loader.h#ShardLoader
TEST(ShardLoader, ReadingAheadEndsWithTheEpochBeforeAnEvaluation) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1);
    auto model = net();
    const auto file = std::make_shared<OneFile>();
    Trainer trainer(job, *model, Sgd{.lr = 0.001}, {.shards = 2});
    ShardLoader train(Part(file).map(torch::data::transforms::Stack<>()), 4);
    ShardLoader test(Part(file).map(torch::data::transforms::Stack<>()), 4);
    for (int epoch = 0; epoch < 4; ++epoch) {
      trainer.run_epoch(train, [&](Shard& shard, auto& batch) {
        return shard.loss(model->forward(batch.data).square().mean());
      });
      trainer.evaluate(test, [](auto&, ShardMetrics&) {});
    }
    EXPECT_EQ(file->most, 1);
  });
}

// promise: shard_loader.h#read
TEST(ShardLoader, WhatAProgramReadsItselfIsReadByItsThreadAlone) {
  on_workers(1, [](const Job& job) {
    auto model = net();
    const auto file = std::make_shared<OneFile>();
    Trainer trainer(job, *model, Sgd{.lr = 0.001}, {.shards = 2, .audit_every = 0});
    ShardLoader loader(Part(file).map(torch::data::transforms::Stack<>()), 4, {.prefetch = 5});
    while (trainer.epoch() < 2) {
      trainer.step(loader, [&](Shard& shard, auto& batch) {
        return shard.loss(model->forward(batch.data).square().mean());
      });
      const auto batch = loader.read({7, 31, 2});
      EXPECT_TRUE(torch::equal(batch.data.select(1, 0), torch::tensor({0.07F, 0.31F, 0.02F})));
    }
    EXPECT_EQ(file->most, 1);
  });
}

// promise: shard_loader.h#ShardLoader
TEST(ShardLoader, AnExceptionOfTheDatasetConcernsItsBatchAlone) {
  on_workers(1, [](const Job& job) {
    Reading run(job, {.prefetch = 5});
    run.notes->broken = true;
    int failed = 0;
    for (int step = 0; step < 4; ++step) {
      const auto text = text_of<std::domain_error>([&] { run.step(); });
      if (text.empty()) continue;
      EXPECT_EQ(text, "sample 17 cannot be read");
      EXPECT_EQ(text_of<std::domain_error>([&] { run.step(); }), text);  // the same samples again
      ++failed;
      run.notes->broken = false;
    }
    EXPECT_EQ(failed, 1);
    run.step();
  });
}

// promise: shard_loader.h#read_alone, trainer.h#coming_indices
TEST(ShardLoader, ALoadedRunGetsTheSamplesOfItsPosition) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    Reading run(job);
    run.step();
    run.step();
    run.trainer.save(folder.file("run"));
    run.step();
    run.step();
    const auto end = run.trainer.state_sha256();
    EXPECT_EQ(run.trainer.load(folder.file("run")), 2);
    run.step();
    run.step();
    EXPECT_EQ(run.trainer.state_sha256(), end);
  });
}

class Endless : public torch::data::datasets::Dataset<Endless> {
 public:
  torch::data::Example<> get(std::size_t) override { return {}; }
  torch::optional<std::size_t> size() const override { return {}; }
};

// promise: shard_loader.h#ShardLoader
TEST(ShardLoader, SenselessOptionsAreRefused) {
  const auto refusal = [](std::int64_t batch, const LoaderOptions& options) {
    return text_of<InvalidArgument>([&] { ShardLoader(batches_of(Numbers()), batch, options); });
  };
  EXPECT_THAT(refusal(0, {}), HasSubstr("at least 1 sample"));
  EXPECT_THAT(refusal(1, {.prefetch = -1}), HasSubstr("prefetch must not be negative"));
  EXPECT_THAT(refusal(1, {.threads = 0}), HasSubstr("at least 1 thread"));
  EXPECT_EQ(text_of<InvalidArgument>([] { ShardLoader(Endless(), 1); }),
            "ShardLoader: the dataset does not know its size");
}

}  // namespace
}  // namespace tutti::test::shard_loader_cases
