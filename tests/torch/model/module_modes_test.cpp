// Workers whose modules are not alike in train() or eval() are told, instead of training on with
// gradients that depend on who computed them.

#include "torch/training.h"

namespace tutti::test::module_modes_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::nn::Sequential net() {
  return torch::nn::Sequential(torch::nn::Linear(6, 17), torch::nn::Dropout(0.5),
                               torch::nn::Linear(17, 3));
}

TEST(ModuleModes, AWorkerThatForgetsToGoBackToTrainIsNamedInATrainer) {
  for (const int workers : {2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(3);
      auto model = net();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 4});
      const auto step = [&] {
        return trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(12, 1)); });
      };
      step();
      const auto before = trainer.state_sha256();
      if (job.rank() == 0) model[1]->eval();  // an evaluation by hand
      for (int again = 0; again < 2; ++again) {
        EXPECT_THAT(text_of<InvalidArgument>([&] { step(); }),
                    AllOf(HasSubstr("step 2 of \"model\""), HasSubstr("module \"1\" is in"),
                          HasSubstr("eval() on rank 0"), HasSubstr("train() on rank 1")));
      }
      EXPECT_EQ(trainer.state_sha256(), before);
      EXPECT_EQ(trainer.steps(), 1);
      model->train();
      EXPECT_TRUE(step().applied);
      // Alike on all it is the program's business; a closure may also say it anew.
      model->eval();
      EXPECT_TRUE(step().applied);
      if (job.rank() == 1) model->train();
      EXPECT_TRUE(trainer
                      .step([&](Shard& shard) {
                        model->train();
                        return rows_of(shard, model, Batch(12, 1));
                      })
                      .applied);
    });
  }
}

TEST(ModuleModes, TheModelItselfIsNamedAndAWorkerWithoutAShardDoesNotMatter) {
  on_workers(3, [](const Job& job) {
    torch::manual_seed(3);
    auto model = net();
    Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 2});
    const auto step = [&] {
      return trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(12, 1)); });
    };
    const auto [begin, end] = trainer.shards();
    if (begin == end) model->eval();
    EXPECT_TRUE(step().applied);
    if (job.rank() == 1) model->eval();
    EXPECT_THAT(text_of<InvalidArgument>([&] { step(); }),
                HasSubstr("the model is in train() on rank 0, in eval() on rank 1"));
  });
}

}  // namespace
}  // namespace tutti::test::module_modes_cases
