// The promise of the Trainer: parameters, optimizer state and buffers are the same bytes after
// every step, whatever the number of workers, and whether the run was stopped or not. Each model,
// optimizer and way of a step is here at least once; script/exactness runs all their combinations.

#include "torch/exact_cases.h"

namespace tutti::test::exact {
namespace {

class TrainerExact : public ::testing::TestWithParam<Case> {};

// promise: numerics#what-the-bits-depend-on, trainer.h#index, trainer.h#nothing
TEST_P(TrainerExact, AnyNumberOfWorkersGivesTheBytesOfOne) {
  auto one = GetParam();
  expect_same_on_any_number(one, {2, 3, 5, 8});
  one.shards = 8;
  expect_same_on_any_number(one, {2, 8});
}

// promise: numerics#what-the-bits-may-depend-on-and-what-not, trainer.h#seed
TEST_P(TrainerExact, AStopDoesNotShow) { expect_same_after_a_stop(GetParam(), 2, 3, 2); }

std::string name_of_case(const ::testing::TestParamInfo<Case>& test) {
  return name_of(test.param.model, test.param.optimizer, test.param.way);
}

INSTANTIATE_TEST_SUITE_P(
    Some, TrainerExact,
    ::testing::Values(
        Case{"mlp", "adam", "plain", 5}, Case{"mlp", "adamw", "norm clip", 5},
        Case{"lstm", "sgd", "loss scale", 5}, Case{"convolution", "adam", "halves", 5},
        Case{"embedding", "adagrad", "norm clip", 5}, Case{"tables", "adam", "plain", 5},
        Case{"tables", "adagrad", "norm clip", 5}, Case{"tables", "sgd", "halves", 5},
        Case{"tables", "adamw", "topk codec", 5}, Case{"tied", "sgd", "value clips", 5},
        Case{"branches", "rmsprop", "halves", 5}, Case{"half", "adamw", "loss scale", 5},
        Case{"mlp", "adam", "topk codec", 5}, Case{"lstm", "sgd", "half codec", 5},
        Case{"branches", "adamw", "threshold codec", 5},
        Case{"half", "adagrad", "bfloat16 codec", 5}, Case{"lstm", "adamw", "int8 codec", 5},
        Case{"convolution", "rmsprop", "topk per tensor", 5},
        Case{"convolution", "adam", "local", 5}, Case{"half", "adamw", "local biases", 5},
        Case{"lstm", "sgd", "block momentum", 5}, Case{"branches", "adagrad", "partial", 5},
        Case{"half", "adamw", "diloco in 8 bits", 5}, Case{"lstm", "adam", "diloco in 8 bits", 5},
        Case{"half", "adamw", "diloco with overlap", 5}, Case{"half", "adamw", "diloco", 5},
        Case{"convolution", "adamw", "diloco", 5}, Case{"tables", "lion", "norm clip", 5},
        Case{"half", "lion", "local", 5}, Case{"tables", "rms_prop", "topk codec", 5},
        Case{"lstm", "rms_prop", "block momentum", 5}, Case{"tables", "amsgrad", "halves", 5},
        Case{"half", "amsgrad", "local biases", 5},
        Case{"embedding", "plain_sgd", "momentum correction", 5}),
    name_of_case);

// Without this the tests above could not tell random numbers of shards from those of workers.
// promise: trainer.h#Trainer
TEST(TrainerExactly, RandomNumbersOfAWorkerWouldShow) {
  const auto run = [](int workers, bool of_worker) {
    return text_of_rank_0(workers, [&](const Job& job) {
      torch::manual_seed(1);
      auto model = mlp();
      Trainer trainer(job, *model, Adam{}, {.shards = 4, .audit_every = 0});
      for (int step = 0; step < 2; ++step) {
        trainer.step([&](Shard& shard) {
          if (of_worker) torch::manual_seed(static_cast<std::uint64_t>(job.rank()));
          return shard.loss(model->forward(torch::randn({4, 6})).square().mean());
        });
      }
      return trainer.state_sha256();
    });
  };
  EXPECT_EQ(run(2, false), run(1, false));
  EXPECT_NE(run(2, true), run(1, true));
}

TEST(TrainerExactly, AnotherSeedOrNumberOfShardsIsAnotherRun) {
  const Case one{"mlp", "adam", "plain", 4};
  EXPECT_EQ(train(2, one), train(1, one));
  EXPECT_NE(train(1, {"mlp", "adam", "plain", 5}), train(1, one));
}

}  // namespace
}  // namespace tutti::test::exact
