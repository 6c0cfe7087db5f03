// Losses that are sums: TrainerOptions::divide beside the same steps by hand, on any number of
// workers.

#include <set>

#include "support/running_command.h"
#include "torch/exact_cases.h"

namespace tutti::test::trainer_divide_cases {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kShards = 5;

/// A shard's weight and its loss; which of two branches it takes part in.
double weight_of(std::int64_t shard) { return static_cast<double>(1 + shard % 3); }

torch::nn::ModuleList net() {
  torch::manual_seed(7);
  return torch::nn::ModuleList(
      torch::nn::Linear(6, 70), torch::nn::Linear(6, 70),
      torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 3).sparse(true)));
}

torch::Tensor loss_of(torch::nn::ModuleList& model, std::uint64_t seed, std::int64_t shard) {
  const auto x = exact::draw(seed, {4, 6});
  auto loss = model[0]->as<torch::nn::Linear>()->forward(x).square().sum() * 0.01;
  if (shard % 2 == 1) {
    const auto codes = torch::full({3}, shard, torch::kInt64);
    loss = loss + model[1]->as<torch::nn::Linear>()->forward(x).square().sum() * 0.01 +
           model[2]->as<torch::nn::Embedding>()->forward(codes).square().sum();
  }
  return loss;
}

/// One step of SGD in plain torch.
void step_by_hand(torch::nn::ModuleList& model, Divide divide, std::int64_t step, double rate) {
  auto parameters = model->parameters();
  std::vector<torch::Tensor> sums(parameters.size());
  std::vector<double> contributed(parameters.size());
  double all = 0;
  for (std::int64_t shard = 0; shard < kShards; ++shard) {
    all += weight_of(shard);
    loss_of(model, static_cast<std::uint64_t>(100 * step + shard), shard).backward();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      auto& gradient = parameters[p].mutable_grad();
      if (!gradient.defined()) continue;
      const auto part = gradient.to_dense() * weight_of(shard);
      sums[p] = sums[p].defined() ? sums[p] + part : part;
      contributed[p] += weight_of(shard);
      gradient.reset();
    }
  }
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const double divisor = divide == Divide::by_weight         ? all
                           : divide == Divide::by_contributors ? contributed[p]
                                                               : 1;
    parameters[p] -= rate * sums[p] / divisor;
  }
}

/// Ways of a step that meet the divisor.
const std::vector<std::pair<std::string, TrainerOptions>>& ways() {
  static const std::vector<std::pair<std::string, TrainerOptions>> all = {
      {"plain", {}},
      {"loss scale", {.loss_scale = {.start = 1024}}},
      {"norms", {.clip = {.norm = 1e6}}},
      {"codec", {.compression = {.codec = half_codec()}, .logical_workers = 2}},
  };
  return all;
}

// findings-3: D3
TEST(TrainerDivide, IsTheSumOrTheMeanOfStepsWrittenByHandOnAnyNumberOfWorkers) {
  for (const auto divide : {Divide::by_weight, Divide::by_contributors, Divide::not_at_all}) {
    for (const auto& [way, with] : ways()) {
      std::set<std::string> hashes;
      for (const int workers : {1, 2, 3}) {
        hashes.insert(text_of_rank_0(workers, [&](const Job& job) {
          auto model = net();
          auto by_hand = net();
          auto options = with;
          options.shards = kShards;
          options.divide = divide;
          Trainer trainer(job, *model, Sgd{.lr = 0.01}, options);
          for (std::int64_t step = 1; step <= 4; ++step) {
            const auto result = trainer.step([&](Shard& shard) {
              const auto seed = static_cast<std::uint64_t>(100 * step + shard.index());
              return shard.loss(loss_of(model, seed, shard.index()), weight_of(shard.index()));
            });
            EXPECT_TRUE(result.applied) << result.dropped_because;
            step_by_hand(by_hand, divide, step, 0.01);
          }
          expect_close(*model, *by_hand, way == "codec" ? 1e-2 : 1e-5);
          return trainer.state_sha256();
        }));
      }
      EXPECT_EQ(hashes.size(), 1U) << way;
    }
  }
}

// findings-3: D3
TEST(TrainerDivide, IsOfTheRun) {
  const TemporaryFolder folder;
  on_workers(2, [&](const Job& job) {
    auto model = net();
    const auto trainer_of = [&](Divide divide) {
      return std::make_unique<Trainer>(job, *model, Sgd{},
                                       TrainerOptions{.shards = 2, .divide = divide});
    };
    trainer_of(Divide::not_at_all)->save(folder.file("run"));
    EXPECT_EQ(trainer_of(Divide::not_at_all)->load(folder.file("run")), 0);
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { trainer_of(Divide::by_weight)->load(folder.file("run")); }),
        HasSubstr("divide"));
    EXPECT_THAT(text_of<Mismatch>(
                    [&] { trainer_of(job.rank() == 0 ? Divide::by_weight : Divide::not_at_all); }),
                HasSubstr("divide"));
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  Trainer(job, *model, Sgd{},
                          {.shards = 2,
                           .divide = Divide::not_at_all,
                           .logical_workers = 2,
                           .per_replica = [](const std::string& name) { return name[0] == '1'; }});
                }),
                HasSubstr("divide not at all with per_replica"));
  });
}

}  // namespace
}  // namespace tutti::test::trainer_divide_cases
