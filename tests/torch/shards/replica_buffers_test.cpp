// Statistics that each logical worker keeps for itself, beside parameters that are everybody's.

#include "torch/training.h"

namespace tutti::test::replica_buffers_cases {
namespace {

struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl() {
    in = register_module("in", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    out = register_module("out", torch::nn::Linear(6, 1));
  }
  torch::Tensor loss(const torch::Tensor& x) {
    return out(torch::relu(norm(in(x)))).square().mean();
  }
  torch::nn::Linear in{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Normalized);

std::string train(int workers) {
  return text_of_rank_0(workers, [](const Job& job) {
    torch::manual_seed(1);
    Normalized model;
    Trainer trainer(job, *model, Adam{.lr = 0.01},
                    {.shards = 5, .logical_workers = 2, .per_replica = [](const std::string& name) {
                       return name.find("running") != name.npos;
                     }});
    std::string hashes;
    while (trainer.steps() < 4) {
      const auto result = trainer.step([&](Shard& shard) {
        const auto x = torch::randn({8, 4}, at::make_generator<at::CPUGeneratorImpl>(shard.seed()));
        return shard.loss(model->loss(x + static_cast<double>(shard.index())));
      });
      EXPECT_TRUE(result.applied);
      hashes += trainer.state_sha256();
    }
    std::vector<torch::Tensor> means;
    for (std::int64_t l = 0; l < 2; ++l) {
      trainer.with_logical_worker(l, [&] { means.push_back(model->norm->running_mean.clone()); });
    }
    EXPECT_FALSE(torch::equal(means[0], means[1]));
    EXPECT_TRUE(torch::equal(model->norm->running_mean, means[0]));
    EXPECT_THAT(text_of([&] { trainer.gather("norm.running_mean"); }),
                ::testing::HasSubstr("is a buffer, not a parameter"));
    return hashes;
  });
}

TEST(ReplicaBuffers, NeedNoPrivateParameter) {
  const auto alone = train(1);
  for (const int workers : {2, 3, 5, 8}) EXPECT_EQ(train(workers), alone) << workers;
}

}  // namespace
}  // namespace tutti::test::replica_buffers_cases
