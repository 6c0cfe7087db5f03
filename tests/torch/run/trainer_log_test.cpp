// What a Trainer writes to its step log.

#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "support/running_command.h"
#include "torch/training.h"

namespace tutti::test::trainer_log_cases {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

class TrainerLog : public ::testing::Test {
 protected:
  /// The lines after the header of a run of four steps.
  std::vector<nlohmann::json> lines_of_run(int workers, TrainerOptions options) const {
    options.shards = 3;
    options.log = folder_.file("log");
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = torch::nn::Sequential(torch::nn::Linear(6, 3000), torch::nn::BatchNorm1d(3000));
      Trainer trainer(job, *model, Adam{}, options);
      while (trainer.steps() < 4) {
        trainer.step([&](Shard& shard) {
          shard.metrics().sum("rows", 4);
          return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
        });
      }
    });
    std::ifstream file(options.log);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    EXPECT_EQ(lines.at(0).at("steps"), 0);
    lines.erase(lines.begin());
    return lines;
  }

 private:
  TemporaryFolder folder_;
};

// promise: trainer_options.h#hash_every
TEST_F(TrainerLog, ItIsTheSameOfAnyNumberOfWorkers) {
  const TrainerOptions options{.ema_decay = 0.1, .hash_every = 1};
  const auto alone = lines_of_run(1, options);
  EXPECT_EQ(alone.size(), 8U);
  EXPECT_EQ(lines_of_run(3, options), alone);
}

// promise: trainer_options.h#hash_every, trainer_options.h#metrics_every
TEST_F(TrainerLog, DigestsAreNamedByWhatTheyAreOf) {
  const auto lines = lines_of_run(2, {.ema_decay = 0.1, .metrics_every = 0, .hash_every = 4});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("step"), 4);
  const auto digests = lines[0].at("digests").get<std::map<std::string, std::string>>();
  for (const auto* const name : {"0.weight", "0.weight/exp_avg_sq", "0.weight/average",
                                 "buffer:1.running_mean", "buffer:1.num_batches_tracked"}) {
    EXPECT_THAT(digests, Contains(Key(name)));
  }
}

// promise: trainer_options.h#metrics_every
TEST_F(TrainerLog, MetricsComeAsOftenAsAskedFor) {
  const auto lines = lines_of_run(2, {.metrics_every = 2});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("step"), 2);
  EXPECT_EQ(lines[1].at("step"), 4);
  EXPECT_EQ(lines[1].at("metrics").at("rows"), 12);
  EXPECT_EQ(lines[1].at("weight"), 3);
}

/// Before anything is computed, and on all workers.
// promise: trainer_options.h#log
TEST_F(TrainerLog, AFileThatIsNoStepLogIsRefusedAtOnce) {
  const TemporaryFolder folder;
  const auto file = folder.file("notes");
  std::ofstream(file) << "mine\n";
  on_workers(2, [&](const Job& job) {
    auto model = mlp();
    EXPECT_THAT(text_of<InvalidArgument>([&] { Trainer(job, *model, Adam{}, {.log = file}); }),
                HasSubstr("notes is there, and is no step log"));
    EXPECT_THAT(text_of<IoError>([&] { Trainer(job, *model, Adam{}, {.log = "/proc/none/log"}); }),
                HasSubstr("/proc/none"));
    Trainer(job, *model, Adam{}, {.log = folder.file("made/log")});
  });
  EXPECT_EQ(read_file(file), "mine\n");
}

}  // namespace
}  // namespace tutti::test::trainer_log_cases
