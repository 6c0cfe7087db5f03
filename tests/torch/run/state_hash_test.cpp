// What the two hashes cover: each part of a run's state by itself, and the bytes that the header
// names.

#include "kernels/hash.h"
#include "torch/training.h"

namespace tutti::test::state_hash_cases {
namespace {

/// Hashes before and after a step that moves nothing but what the case is of.
void expect_seen(const Job& job, const std::string& what, torch::nn::Module& model,
                 const Optimizer& optimizer, const TrainerOptions& options,
                 const Trainer::Compute& compute) {
  Trainer trainer(job, model, optimizer, options);
  const auto parameters = parameters_sha256(model);
  const auto before = trainer.state_sha256();
  EXPECT_EQ(before.size(), 64U);
  EXPECT_EQ(trainer.state_sha256(), before);
  EXPECT_TRUE(trainer.step(compute).applied);
  EXPECT_EQ(parameters_sha256(model), parameters) << what;
  EXPECT_NE(trainer.state_sha256(), before) << what;
}

// promise: trainer.h#state_sha256
TEST(StateHash, SeesEachPartOfTheState) {
  on_workers(2, [](const Job& job) {
    const auto layer = [] { return torch::nn::Linear(torch::nn::LinearOptions(6, 3).bias(false)); };
    const auto gradient_of = [](double value) {
      return [value](Shard& shard) { return shard.gradients({torch::full({3, 6}, value)}); };
    };
    auto model = layer();
    expect_seen(job, "optimizer state", *model, Sgd{.lr = 0, .momentum = 0.9}, {.shards = 2},
                gradient_of(1));
    // Moments of zero stay zero, and the parameter where it is.
    expect_seen(job, "update counts", *model, Adam{.lr = 0.1}, {.shards = 2}, gradient_of(0));
    expect_seen(job, "residuals", *model, Sgd{.lr = 0},
                {.shards = 2, .compression = {.codec = top_k_codec(0.1)}, .logical_workers = 2},
                gradient_of(1));
    auto norm = torch::nn::BatchNorm1d(3);
    expect_seen(job, "buffers", *norm, Sgd{.lr = 0}, {.shards = 2}, [&](Shard& shard) {
      return shard.loss(norm->forward(torch::randn({8, 3})).square().sum());
    });
    Trainer trainer(job, *model, Sgd{}, {.shards = 2});
    const auto before = trainer.state_sha256();
    trainer.edit([&] { model->weight.data()[2][5] += 1; });
    EXPECT_NE(trainer.state_sha256(), before) << "parameters";
  });
}

// promise: tensors.h#parameters_sha256
TEST(StateHash, OfParametersIsThatOfNamesAndBytesInRegistrationOrder) {
  torch::manual_seed(1);
  auto model = mlp();
  Sha256 hash;
  for (const char* name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
    const auto value = model->named_parameters()[name].detach();
    hash.update(name, std::string(name).size());
    hash.update(value.data_ptr(), value.nbytes());
  }
  EXPECT_EQ(parameters_sha256(*model), hash.hex());
}

}  // namespace
}  // namespace tutti::test::state_hash_cases
