// Values that the program gives for each step, or for each epoch, and that decide bits: they are
// compared on all workers.

#include "torch/training.h"

namespace tutti::test::trainer_given_values_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Batch& batch() {
  static const Batch batch(24, 1);
  return batch;
}

// findings-3: B14
TEST(TrainerGivenValues, AScheduleThatDiffersByWorkerNamesWhoHasWhat) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      double factor = 1;  // of each worker's own plateau
      Trainer trainer(
          job, *model, Sgd{.lr = 0.1},
          {.shards = 6, .schedule = Schedule("plateau", [&](std::int64_t) { return factor; })});
      const auto step = [&] {
        return trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); });
      };
      EXPECT_TRUE(step().applied);
      const auto before = trainer.state_sha256();
      if (job.rank() == workers - 1) factor = 0.5;
      if (workers == 1) {
        EXPECT_EQ(step().rate_factor, 0.5);
        return;
      }
      const auto last = std::to_string(workers - 1);
      EXPECT_THAT(text_of<InvalidArgument>(step),
                  AllOf(HasSubstr("step 2 of \"model\""), HasSubstr("plateau"),
                        HasSubstr("1 on rank 0, 0.5 on rank " + last)));
      EXPECT_EQ(trainer.state_sha256(), before);
      factor = 0.25;
      EXPECT_EQ(step().rate_factor, 0.25);
    });
  }
}

SampleOrder order_by(const std::function<std::vector<std::int64_t>(std::int64_t epoch)>& samples) {
  return SampleOrder("mine",
                     [samples](std::int64_t, std::int64_t epoch) { return samples(epoch); });
}

ShardAnswer loss_of(Shard& shard, torch::nn::Sequential& model) {
  const auto rows = shard.indices(24, 2);
  if (rows.empty()) return shard.nothing();
  const auto index = torch::tensor(rows);
  return shard.loss(torch::mse_loss(model->forward(batch().x.index_select(0, index)),
                                    batch().y.index_select(0, index)));
}

std::vector<std::int64_t> up_to(std::int64_t end) {
  std::vector<std::int64_t> all;
  for (std::int64_t k = 0; k < end; ++k) all.push_back(k);
  return all;
}

// findings-3: B14
TEST(TrainerGivenValues, AnOrderThatDiffersByWorkerIsFoundInTheEpochsFirstStep) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      bool apart = true;
      Trainer trainer(job, *model, Sgd{.lr = 0.1},
                      {.shards = 6, .order = order_by([&](std::int64_t epoch) {
                                      auto all = up_to(24);
                                      const bool is_last =
                                          job.rank() > 0 && job.rank() == workers - 1;
                                      if (epoch == 1 && apart && is_last)
                                        std::swap(all[0], all[23]);
                                      return all;
                                    })});
      const auto step = [&] {
        return trainer.step([&](Shard& shard) { return loss_of(shard, model); });
      };
      EXPECT_TRUE(step().applied);
      EXPECT_TRUE(step().ends_epoch);
      if (workers == 1) {
        EXPECT_TRUE(step().applied);
        return;
      }
      const auto last = std::to_string(workers - 1);
      EXPECT_THAT(text_of<InvalidArgument>(step),
                  AllOf(HasSubstr("step 3 of \"model\""), HasSubstr("order \"mine\""),
                        HasSubstr("epoch 1"), HasSubstr("rank 0"), HasSubstr("rank " + last)));
      EXPECT_EQ(trainer.steps(), 2);
    });
  }
}

// A worker without shards asks for no samples, and comes to its own end of the epoch.
// findings-3: B14
TEST(TrainerGivenValues, AnOrderOfAWorkerWithoutShardsIsComparedInTheNextStep) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(3);
    auto model = mlp();
    Trainer trainer(job, *model, Sgd{.lr = 0.1},
                    {.shards = 2, .order = order_by([&](std::int64_t) {
                                    return up_to(job.rank() == 2 ? 4 : 24);
                                  })});
    const auto step = [&] {
      return trainer.step([&](Shard& shard) { return loss_of(shard, model); });
    };
    step();
    EXPECT_THAT(text_of<InvalidArgument>(step), AllOf(HasSubstr("rank 0"), HasSubstr("rank 2")));
    EXPECT_EQ(trainer.steps(), 1);
  });
}

// findings-3: B14
TEST(TrainerGivenValues, AnAveragingPolicyThatDiffersByWorkerNamesWhoHasWhat) {
  struct Sometimes : AveragingPolicy {
    explicit Sometimes(int rank) : rank(rank) {}
    std::string name() const override { return "sometimes"; }
    bool due(std::int64_t step, std::int64_t, std::int64_t) const override {
      return step == 2 && rank == 0;
    }
    int rank;
  };
  for (const int workers : {2, 3}) {
    on_workers(workers, [&](const Job& job) {
      torch::manual_seed(3);
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1},
                      {.shards = 6,
                       .logical_workers = 2,
                       .averaging = std::make_shared<Sometimes>(job.rank())});
      const auto step = [&] {
        return trainer.step([&](Shard& shard) { return rows_of(shard, model, batch()); });
      };
      EXPECT_TRUE(step().applied);
      EXPECT_THAT(text_of<InvalidArgument>(step),
                  AllOf(HasSubstr("step 2 of \"model\""), HasSubstr("averaging sometimes"),
                        HasSubstr("rank 0"), HasSubstr("rank 1")));
      EXPECT_EQ(trainer.steps(), 1);
    });
  }
}

}  // namespace
}  // namespace tutti::test::trainer_given_values_cases
