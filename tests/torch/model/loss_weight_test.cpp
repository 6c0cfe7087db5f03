// Weights of losses that sums in float32 cannot hold.

#include "torch/training.h"

namespace tutti::test::loss_weight_cases {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kTooFar[] = {1e-300, 1e-44, 9e-16, 1.1e15, 1e38, 1e300};

// They gave gradients of 0, NaN or inf without a word.
TEST(LossWeight, OfADataParallelIsRefusedWhereFloat32CannotAddIt) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::nn::Linear model(3, 2);
      DataParallel parallel(job, *model);
      const auto loss = [&] { return model->forward(torch::ones({2, 3})).sum(); };
      for (const double weight : kTooFar) {
        const auto is_told = AllOf(HasSubstr(fmt::format("a weight of {} is too ", weight)),
                                   HasSubstr("0, or between 1e-15 and 1e+15"));
        EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.next_weight(weight); }), is_told);
        EXPECT_THAT(text_of<InvalidArgument>([&] { parallel.synchronize(weight); }), is_told);
      }
      for (const double weight : {1e-15, 0.5, 1e15}) {
        model->zero_grad();
        parallel.next_weight(weight);
        loss().backward();
        EXPECT_TRUE(torch::allclose(model->weight.grad(), torch::full({2, 3}, 2.0)));
      }
    });
  }
}

TEST(LossWeight, OfAMicroBatchIsRefusedOnAllWhereFloat32CannotAddIt) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::nn::Linear model(3, 2);
      DataParallel parallel(job, *model);
      const bool is_last = job.rank() + 1 == job.size();
      const auto step = [&](double weight) {
        auto scope = parallel.accumulate();
        scope.micro_batch(weight, [&] { return model->forward(torch::ones({2, 3})).sum(); });
        scope.finish();
      };
      if (is_last) {
        EXPECT_THAT(text_of<InvalidArgument>([&] { step(1e-300); }), HasSubstr("too small"));
      } else {
        EXPECT_THAT(text_of<PeerFailed>([&] { step(1); }), HasSubstr("too small"));
      }
      step(2);
      EXPECT_EQ(parallel.report().weight, 2 * job.size());
    });
  }
}

TEST(LossWeight, OfAShardIsRefusedOnAllWhereFloat32CannotAddIt) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      torch::manual_seed(1);
      torch::nn::Linear model(3, 2);
      Trainer trainer(job, *model, Sgd{.lr = 1}, {.shards = 3});
      const auto step = [&](double weight) {
        return trainer.step([&](Shard& shard) {
          const auto loss = model->forward(torch::ones({2, 3})).sum();
          return shard.loss(loss, shard.index() == 2 ? weight : 1);
        });
      };
      const bool has_shard = job.rank() + 1 == job.size();
      const auto before = model->weight.detach().clone();
      for (const double weight : {1e-300, 1e300}) {
        const auto text = has_shard ? text_of<InvalidArgument>([&] { step(weight); })
                                    : text_of<PeerFailed>([&] { step(weight); });
        EXPECT_THAT(text, HasSubstr(fmt::format("shard 2: a weight of {} is too", weight)));
      }
      EXPECT_TRUE(torch::equal(model->weight, before));
      EXPECT_TRUE(step(1e-15).applied);
      EXPECT_TRUE(model->weight.isfinite().all().item<bool>());
    });
  }
}

TEST(LossWeight, AndALossScaleThatGradientsWouldVanishInIsRefused) {
  on_workers(1, [](const Job& job) {
    torch::nn::Linear model(3, 2);
    for (const LossScale& scale : {LossScale{.start = 1e-50}, LossScale{.start = 1e30},
                                   LossScale{.start = 1, .dynamic = true, .minimum = 1e-12},
                                   LossScale{.start = 1, .dynamic = true, .maximum = 1e21}}) {
      EXPECT_THAT(text_of<InvalidArgument>([&] {
                    Trainer(job, *model, Sgd{.lr = 1}, {.shards = 3, .loss_scale = scale});
                  }),
                  HasSubstr("a loss scale must be between 1e-10 and 1e+10"));
    }
  });
}

// A step of 1e40 · Σ w was applied with a gradient of 0.
TEST(LossWeight, AndALossScaleAtTheEndsOfTheirRangesTrain) {
  for (const int workers : {1, 2, 3}) {
    on_workers(workers, [](const Job& job) {
      for (const auto& [scale, weight] : {std::pair{1e10, 1e15}, {1e-10, 1e-15}}) {
        torch::nn::Linear model(3, 2);
        torch::nn::init::zeros_(model->weight);
        Trainer trainer(job, *model, Sgd{.lr = 1},
                        {.shards = 3, .loss_scale = LossScale{.start = scale}});
        const auto result = trainer.step([&](Shard& shard) {
          return shard.loss(model->forward(torch::ones({1, 3})).sum() * 1e-6, weight);
        });
        EXPECT_TRUE(result.applied);
        EXPECT_TRUE(torch::allclose(model->weight, torch::full({2, 3}, -1e-6), 1e-5, 0))
            << model->weight;
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test::loss_weight_cases
