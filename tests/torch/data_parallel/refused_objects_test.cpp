// A DataParallel that is refused has changed nothing: whoever has the parameters goes on.

#include "torch/training.h"

namespace tutti::test::refused_objects_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// findings-3: B10
TEST(RefusedObjects, OneOverATrainersParametersLeavesTheTrainerUsable) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      auto model = mlp();
      Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = 3});
      const auto step = [&] {
        const auto result =
            trainer.step([&](Shard& shard) { return rows_of(shard, model, Batch(9, 1)); });
        EXPECT_TRUE(result.applied);
        return trainer.state_sha256();
      };
      step();
      const auto before = parameters_sha256(*model);
      EXPECT_THAT(text_of<InvalidArgument>([&] { DataParallel parallel(job, *model); }),
                  AllOf(HasSubstr("parameter \"0.weight\""),
                        HasSubstr("is wrapped by a DataParallel or a Trainer already")));
      EXPECT_THAT(
          text_of<InvalidArgument>([&] { AveragedParallel parallel(job, *model, local_sgd(2)); }),
          AllOf(HasSubstr("parameter \"0.weight\""), HasSubstr("is a Trainer's already")));
      EXPECT_EQ(parameters_sha256(*model), before);
      step();
    });
  }
}

// findings-3: B10
TEST(RefusedObjects, OneOverTheLastParameterOfAnotherLeavesThatOneAndTheRestAlone) {
  on_workers(2, [](const Job& job) {
    torch::manual_seed(1 + job.rank());
    auto one = mlp();
    auto other = mlp();
    DataParallel parallel(job, *one);
    const auto mine = parameters_sha256(*other);
    const auto version = one->parameters()[0]._version();
    torch::nn::Module both;
    both.register_module("other", other.ptr());
    both.register_module("one", one.ptr());
    EXPECT_THAT(text_of<InvalidArgument>([&] { DataParallel of_both(job, both); }),
                HasSubstr("is wrapped by a DataParallel or a Trainer already"));
    EXPECT_EQ(parameters_sha256(*other), mine) << "nothing was sent";
    EXPECT_EQ(one->parameters()[0]._version(), version);
    Batch(4, 1).loss(one, 0, 4).backward();
    EXPECT_EQ(parallel.report().parameters_touched, 4);
  });
}

}  // namespace
}  // namespace tutti::test::refused_objects_cases
