// Shards that all compute the same gradient, because they have the same batch: rank 0 says so.

#include "support/log_capture.h"
#include "torch/training.h"

namespace tutti::test::same_shards_cases {
namespace {

torch::Tensor loss_of_rows(torch::nn::Sequential& model, std::int64_t begin, std::int64_t end) {
  static const Batch batch(24, 1);
  return batch.loss(model, begin, end);
}

// findings-3: D3
TEST(SameShards, AreWarnedOfOnceInTheFirstStep) {
  struct Case {
    const char* what;
    std::int64_t shards;
    std::function<ShardAnswer(Shard&, torch::nn::Sequential&)> compute;
    int warnings;
  };
  const std::vector<Case> cases = {
      {"one batch", 6,
       [](Shard& shard, auto& model) { return shard.loss(loss_of_rows(model, 0, 8)); }, 1},
      {"one batch, other weights", 6,
       [](Shard& shard, auto& model) {
         return shard.loss(loss_of_rows(model, 0, 8), static_cast<double>(1 + shard.index()));
       },
       1},
      {"parts", 6,
       [](Shard& shard, auto& model) {
         return shard.loss(loss_of_rows(model, shard.index(), shard.index() + 4));
       },
       0},
      {"two of the same", 6,
       [](Shard& shard, auto& model) {
         return shard.loss(loss_of_rows(model, shard.index() / 2, shard.index() / 2 + 4));
       },
       0},
      {"zeros", 6,
       [](Shard& shard, auto& model) { return shard.loss(loss_of_rows(model, 0, 8) * 0); }, 0},
      {"one shard", 1,
       [](Shard& shard, auto& model) { return shard.loss(loss_of_rows(model, 0, 8)); }, 0},
      {"one that counts", 6,
       [](Shard& shard, auto& model) {
         return shard.loss(loss_of_rows(model, 0, 8), shard.index() == 3 ? 1 : 0);
       },
       0},
      {"from the second step on", 6,
       [](Shard& shard, auto& model) {
         const auto begin = shard.step() == 1 ? shard.index() : 0;
         return shard.loss(loss_of_rows(model, begin, begin + 4));
       },
       0}};
  for (const auto& one : cases) {
    for (const int workers : {1, 2, 3}) {
      on_workers(workers, [&](const Job& job) {
        const LogCapture log;
        torch::manual_seed(3);
        auto model = mlp();
        Trainer trainer(job, *model, Sgd{.lr = 0.1}, {.shards = one.shards});
        for (int step = 0; step < 3; ++step) {
          trainer.step([&](Shard& shard) { return one.compute(shard, model); });
        }
        EXPECT_EQ(log.count("computed the same gradient"), job.rank() == 0 ? one.warnings : 0)
            << one.what;
        EXPECT_EQ(log.count("shard.indices()"), job.rank() == 0 ? one.warnings : 0) << one.what;
      });
    }
  }
}

}  // namespace
}  // namespace tutti::test::same_shards_cases
