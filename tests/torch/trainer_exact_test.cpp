// The promise of the Trainer: parameters, optimizer state and buffers are the same bytes after
// every step, whatever the number of workers.

#include <unistd.h>

#include "training.h"

namespace tutti::test {
namespace {

/// A model and its loss for one shard. The data are drawn from the shard's seed.
struct Task {
  std::shared_ptr<torch::nn::Module> module;
  std::function<ShardAnswer(Shard&)> compute;
};

torch::Tensor draw(std::uint64_t seed, torch::IntArrayRef sizes) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}
torch::Tensor draw_codes(std::uint64_t seed, std::int64_t codes, torch::IntArrayRef sizes) {
  return torch::randint(codes, sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}
double weight_of(const Shard& shard) {
  return static_cast<double>(1 + (shard.index() * 5 + 3) % 4);
}

Task mlp_with_dropout() {
  auto net = torch::nn::Sequential(torch::nn::Linear(6, 700), torch::nn::ReLU(),
                                   torch::nn::Dropout(0.4), torch::nn::Linear(700, 9));
  return {net.ptr(), [net](Shard& shard) mutable {
            return shard.loss(net->forward(draw(shard.seed(), {4, 6})).square().mean(),
                              weight_of(shard));
          }};
}

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 20))),
        lstm(register_module("lstm", torch::nn::LSTM(20, 40))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({40})))),
        output(register_module("output", torch::nn::Linear(40, 11))) {}
  torch::nn::Embedding embedding;
  torch::nn::LSTM lstm;
  torch::nn::LayerNorm norm;
  torch::nn::Linear output;
};
TORCH_MODULE(Recurrent);

Task recurrent() {
  Recurrent net;
  return {net.ptr(), [net](Shard& shard) mutable {
            const auto codes = draw_codes(shard.seed(), 11, {7, 3});
            const auto hidden = std::get<0>(net->lstm->forward(net->embedding->forward(codes)));
            const auto scores = net->output->forward(net->norm->forward(hidden)).flatten(0, 1);
            return shard.loss(torch::nn::functional::cross_entropy(scores, codes.flatten()),
                              weight_of(shard));
          }};
}

Task convolution_with_batch_norm() {
  auto net = torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)),
                                   torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                                   torch::nn::Flatten(), torch::nn::Linear(8 * 16, 5));
  return {net.ptr(), [net](Shard& shard) mutable {
            return shard.loss(net->forward(draw(shard.seed(), {4, 3, 6, 6})).square().mean(),
                              weight_of(shard));
          }};
}

Task tied_weights() {
  auto shared = torch::nn::Linear(torch::nn::LinearOptions(70, 70).bias(false));
  auto net = torch::nn::Sequential(shared, torch::nn::Tanh(), shared);
  return {net.ptr(), [net](Shard& shard) mutable {
            return shard.loss(net->forward(draw(shard.seed(), {2, 70})).square().mean(),
                              weight_of(shard));
          }};
}

/// Branches that only some shards use, one that none uses, and shards without data.
Task branches() {
  auto net = torch::nn::ModuleList(torch::nn::Linear(6, 90), torch::nn::Linear(6, 90),
                                   torch::nn::Linear(6, 90));
  return {net.ptr(), [net](Shard& shard) mutable {
            if ((shard.index() + shard.step()) % 4 == 3) return shard.nothing();
            const auto which = static_cast<std::size_t>(shard.seed() % 2);
            return shard.loss(net[which]
                                  ->as<torch::nn::Linear>()
                                  ->forward(draw(shard.seed(), {3, 6}))
                                  .square()
                                  .mean(),
                              weight_of(shard));
          }};
}

Task half_precision() {
  auto net = torch::nn::Sequential(torch::nn::Linear(6, 130), torch::nn::Linear(130, 3));
  net->to(torch::kBFloat16);
  return {net.ptr(), [net](Shard& shard) mutable {
            const auto x = draw(shard.seed(), {4, 6}).to(torch::kBFloat16);
            return shard.loss(net->forward(x).square().mean(), weight_of(shard));
          }};
}

/// 64 digits per step: what state_sha256() says on rank 0, and the same on the others.
std::string train(int workers, const std::function<Task()>& make, const Optimizer& optimizer,
                  const TrainerOptions& options) {
  constexpr int kSteps = 4;
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(7 + static_cast<std::uint64_t>(job.rank()));  // rank 0's parameters hold
    const auto task = make();
    Trainer trainer(job, *task.module, optimizer, options);
    std::string mine;
    std::int64_t computed = 0;
    for (int step = 1; step <= kSteps; ++step) {
      const auto result = trainer.step([&](Shard& shard) {
        ++computed;
        return task.compute(shard);
      });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      EXPECT_EQ(result.step, step);
      EXPECT_EQ(result.report.leaves, options.shards);
      mine += trainer.state_sha256();
    }
    const auto [begin, end] = trainer.shards();
    EXPECT_EQ(computed, (end - begin) * kSteps);
    std::string first = mine;
    trainer.group().broadcast({first.data(), static_cast<std::int64_t>(first.size()), DType::uint8},
                              0);
    EXPECT_EQ(first, mine);
    std::int64_t all = computed;
    trainer.group().all_reduce({&all, 1, DType::int64}, Reduction::sum);
    EXPECT_EQ(all, options.shards * kSteps);
    return mine;
  });
}

void expect_same_on_any_number(const std::function<Task()>& make, const Optimizer& optimizer,
                               TrainerOptions options = {}) {
  options.seed = 5;
  for (const std::int64_t shards : {5, 8}) {
    options.shards = shards;
    const auto alone = train(1, make, optimizer, options);
    for (const int workers : {2, 3, 5, 8}) {
      if (shards == 8 && workers % 2 != 0) continue;
      EXPECT_EQ(train(workers, make, optimizer, options), alone)
          << shards << " shards, " << workers << " workers";
    }
  }
}

TEST(TrainerExact, MlpWithDropoutAndAdam) {
  expect_same_on_any_number(mlp_with_dropout, Adam{.lr = 1e-2});
}
TEST(TrainerExact, MlpWithDropoutAndAClipThatBinds) {
  expect_same_on_any_number(mlp_with_dropout, AdamW{.lr = 1e-2}, {.clip = {.norm = 0.01}});
}
TEST(TrainerExact, LstmWithLayerNormAndMomentum) {
  expect_same_on_any_number(recurrent, Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true});
}
TEST(TrainerExact, ConvolutionWithBatchNorm) {
  expect_same_on_any_number(convolution_with_batch_norm, Adam{.lr = 1e-2, .weight_decay = 0.1});
}
TEST(TrainerExact, TiedWeights) {
  expect_same_on_any_number(tied_weights, Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3},
                            {.clip = {.parameter_norm = 0.1, .value = 0.01}});
}
TEST(TrainerExact, BranchesUsedBySomeShardsOnly) {
  expect_same_on_any_number(branches, AdamW{.lr = 1e-2, .weight_decay = 0.1});
}
TEST(TrainerExact, BFloat16WithMasterCopies) {
  expect_same_on_any_number(half_precision, Adam{.lr = 1e-3});
}

TEST(TrainerExact, AnotherSeedOrNumberOfShardsIsAnotherRun) {
  const Optimizer optimizer = Adam{.lr = 1e-2};
  const auto base = train(1, mlp_with_dropout, optimizer, {.shards = 4, .seed = 1});
  EXPECT_EQ(train(2, mlp_with_dropout, optimizer, {.shards = 4, .seed = 1}), base);
  EXPECT_NE(train(1, mlp_with_dropout, optimizer, {.shards = 4, .seed = 2}), base);
  EXPECT_NE(train(1, mlp_with_dropout, optimizer, {.shards = 5, .seed = 1}), base);
}

}  // namespace
}  // namespace tutti::test
