// What TensorBoard gets of a program's own loop and of a Trainer's steps.

#include <cmath>
#include <limits>
#include <utility>

#include "support/event_reader.h"
#include "support/log_capture.h"
#include "support/running_command.h"
#include "torch/training.h"
#include "tutti/tensorboard.h"

namespace tutti::test::tensorboard_cases {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Pair;

// promise: tensorboard.h#TensorBoard
TEST(TensorBoard, IsWrittenByTheFirstWorkerAlone) {
  const TemporaryFolder folder;
  const auto runs = folder.file("runs/one");
  on_workers(3, [&](const Job& job) {
    TensorBoard board(job, runs);
    board.scalar("loss", 1 + job.rank(), 5);
    board.metrics("valid", Metrics({{.name = "accuracy", .value = 0.5, .values = {}}}), 5);
    board.histogram("weights", torch::arange(4, torch::kFloat16), 5);
    board.histogram("nothing", torch::full({3}, std::numeric_limits<float>::quiet_NaN()), 5);
  });
  const auto events = events_in(runs);
  EXPECT_EQ(events.files.size(), 1U);
  EXPECT_THAT(events.curves, ElementsAre(Pair("loss", ElementsAre(Pair(5, 1.F))),
                                         Pair("valid/accuracy", ElementsAre(Pair(5, 0.5F)))));
  EXPECT_THAT(events.histograms, ElementsAre(Key("weights")));
  EXPECT_EQ(events.histograms.at("weights").at(5).sum, 6);
}

// promise: tensorboard.h#TensorBoard
TEST(TensorBoard, TakesTensorsOfAnyLayoutAndRefusesOnAllWorkersWhatItCannotShow) {
  const TemporaryFolder folder;
  const auto runs = folder.file("runs/one");
  on_workers(2, [&](const Job& job) {
    EXPECT_THAT(text_of<InvalidArgument>([&] { TensorBoard(job, runs, -1); }),
                HasSubstr("-1 steps are over"));
    TensorBoard board(job, runs);
    board.histogram("sparse", torch::eye(3).to_sparse(), 1);
    board.histogram("transposed", torch::ones({2, 3}, torch::kBool).t(), 1);
    EXPECT_THAT(text_of<InvalidArgument>(
                    [&] { board.histogram("complex", torch::ones({2}, torch::kComplexFloat), 1); }),
                HasSubstr("\"complex\": give abs()"));
    EXPECT_THAT(text_of<InvalidArgument>([&] { board.scalar("caf\xe9", 1, 1); }),
                HasSubstr("not UTF-8"));
  });
  const auto events = events_in(runs);
  EXPECT_EQ(events.histograms.at("sparse").at(1).count, 9);
  EXPECT_EQ(events.histograms.at("transposed").at(1).sum, 6);
}

TEST(TensorBoard, WhereItCannotBeIsAnErrorOrOneWarning) {
  on_workers(1, [&](const Job& job) {
    EXPECT_THAT(text_of<InvalidArgument>([&] { TensorBoard(job, ""); }), HasSubstr("is empty"));
    EXPECT_THAT(text_of<IoError>([&] { TensorBoard(job, "/proc/none/run"); }),
                HasSubstr("/proc/none"));
    auto model = mlp();
    EXPECT_THAT(
        text_of<IoError>([&] { Trainer(job, *model, Adam{}, {.tensorboard = "/proc/no"}); }),
        HasSubstr("/proc/no"));
  });
}

class TrainerCurves : public ::testing::Test {
 protected:
  /// Steps up to `steps`, from the checkpoint where there is one, to which it goes back once after
  /// step 5; the state's hash.
  std::string run(int workers, std::int64_t steps, TrainerOptions options = {}) const {
    options.shards = 4;
    options.tensorboard = runs_;
    options.schedule = Schedule::cosine(10);
    options.clip.norm = 100;
    return text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      TensorBoard board(job, runs_);
      Trainer trainer(job, *model, Optimizer(Sgd{.lr = 0.5}), options);
      trainer.load(folder_.file("saved"));
      bool goes_back = steps > 5;
      while (trainer.steps() < steps) {
        if (trainer.steps() == 5 && std::exchange(goes_back, false)) {
          trainer.load(folder_.file("saved"));
        }
        const auto result = trainer.step([&](Shard& shard) {
          const Batch batch(4, shard.seed());
          shard.metrics().sum("rows", 4);
          return shard.loss(torch::mse_loss(model->forward(batch.x), batch.y), 4);
        });
        board.scalar("own/loss", result.loss, result.step);
        board.histogram("weight", model->parameters()[0], result.step);
        if (result.step == 3) trainer.save(folder_.file("saved"));
      }
      return trainer.state_sha256();
    });
  }

  TemporaryFolder folder_;
  std::string runs_ = folder_.file("runs/one");
};

// promise: trainer_options.h#tensorboard
TEST_F(TrainerCurves, HaveEachStepOnceAlsoOfARunThatGoesOnOnAnotherNumberOfWorkers) {
  run(1, 5);
  const auto resumed = run(3, 7);
  const auto events = events_in(runs_);
  EXPECT_EQ(events.files.size(), 2U);
  for (const auto* const name : {"step/loss", "step/learning_rate", "step/gradient_norm",
                                 "step/weight", "metrics/rows", "own/loss"}) {
    ASSERT_TRUE(events.curves.contains(name)) << name;
    const auto& curve = events.curves.at(name);
    EXPECT_THAT(curve, ElementsAre(Key(1), Key(2), Key(3), Key(4), Key(5), Key(6), Key(7))) << name;
  }
  EXPECT_EQ(events.curves.at("step/loss"), events.curves.at("own/loss"));
  EXPECT_FALSE(events.curves.contains("metrics/loss"));
  EXPECT_EQ(events.curves.at("step/learning_rate").at(6), 0.25F);
  EXPECT_EQ(events.curves.at("metrics/rows").at(7), 16);
  EXPECT_EQ(events.curves.at("step/weight").at(7), 16);
  EXPECT_THAT(events.histograms.at("weight"),
              ElementsAre(Key(1), Key(2), Key(3), Key(4), Key(5), Key(6), Key(7)));
  EXPECT_GT(events.curves.at("speed/steps_per_second").at(7), 0);
}

// promise: trainer_options.h#tensorboard
TEST_F(TrainerCurves, OfTwoTrainersAtATimeAreNotMixed) {
  on_workers(2, [&](const Job& job) {
    auto model = mlp();
    auto other = mlp();
    const auto second = [&](const std::string& folder) {
      Trainer(job, *other, Adam{}, {.name = "second", .tensorboard = folder});
    };
    {
      Trainer first(job, *model, Adam{}, {.tensorboard = runs_});
      EXPECT_THAT(text_of<InvalidArgument>([&] { second(runs_ + "/"); }),
                  HasSubstr("another Trainer writes its curves to"));
      second(folder_.file("runs/two"));
    }
    second(runs_);
  });
}

TEST_F(TrainerCurves, LeaveAloneWhatTheProgramHasWrittenBefore) {
  on_workers(1, [&](const Job& job) {
    auto model = mlp();
    TensorBoard board(job, runs_ + "/");
    for (int k = 1; k <= 3; ++k) board.scalar("planned", k, k);
    Trainer trainer(job, *model, Adam{}, {.tensorboard = runs_});
    trainer.step([&](Shard& shard) {
      const Batch batch(4, shard.seed());
      return shard.loss(torch::mse_loss(model->forward(batch.x), batch.y));
    });
  });
  const auto events = events_in(runs_);
  EXPECT_THAT(events.curves.at("planned"), ElementsAre(Key(1), Key(2), Key(3)));
  EXPECT_THAT(events.curves.at("step/loss"), ElementsAre(Key(1)));
}

TEST_F(TrainerCurves, ChangeNoByteAndComeAsOftenAsAskedFor) {
  const auto with = run(2, 2, {.metrics_every = 2});
  EXPECT_THAT(events_in(runs_).curves.at("step/loss"), ElementsAre(Key(2)));
  EXPECT_FLOAT_EQ(events_in(runs_).curves.at("step/weight").at(2), 16);
  std::filesystem::remove_all(runs_);
  EXPECT_EQ(run(2, 2, {.metrics_every = 0}), with);
  EXPECT_THAT(events_in(runs_).curves, ElementsAre(Key("own/loss")));
}

}  // namespace
}  // namespace tutti::test::tensorboard_cases
