// Per-replica parameters where workers are on several hosts: what a program sees of them between
// and inside steps is what one host shows.

#include <cstdlib>

#include <fmt/format.h>

#include "support/spread.h"
#include "torch/training.h"

namespace tutti::test::replica_hosts_cases {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kShards = 6;

struct Training {
  explicit Training(const Job& job, std::int64_t logical = 3)
      : model((torch::manual_seed(3), mlp())),
        trainer(job, *model, Sgd{.lr = 0.1, .momentum = 0.5},
                {.shards = kShards, .logical_workers = logical, .averaging = local_sgd(3)}) {}

  ShardAnswer answer(Shard& shard) {
    const auto x = torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(shard.seed()));
    return shard.loss(model->forward(x).square().mean() * static_cast<double>(1 + shard.index()));
  }
  StepResult step() {
    return trainer.step([this](Shard& shard) { return answer(shard); });
  }
  double evaluated() {
    const auto metrics =
        trainer.evaluate(9, 2, [&](const std::vector<std::int64_t>& samples, ShardMetrics& found) {
          const auto x = torch::full({1, 6}, static_cast<double>(samples.front()));
          found.sum("out", model->forward(x).sum().item<double>());
        });
    return metrics["out"];
  }

  torch::nn::Sequential model;
  Trainer trainer;
};

std::string text_of(const torch::Tensor& tensor) {
  std::string text;
  const auto flat = tensor.contiguous().flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i) text += fmt::format("{} ", flat[i].item<float>());
  return text + "\n";
}

void expect_same_everywhere(const Job& job, const std::string& text) {
  const Group group(job, "said");
  auto first = text;
  group.broadcast({first.data(), static_cast<std::int64_t>(first.size()), DType::uint8}, 0);
  EXPECT_EQ(first, text) << "rank " << job.rank();
}

std::string seen_between_steps(int workers) {
  return text_of_rank_0(workers, [](const Job& job) {
    Training run(job);
    std::string seen;
    for (int step = 1; step <= 4; ++step) {
      run.step();
      seen += fmt::format("{}\n", run.evaluated()) + text_of(run.trainer.gather("0.weight"));
      for (std::int64_t l = 0; l < 3; ++l) {
        run.trainer.with_logical_worker(l, [&] {
          seen += text_of(run.model->parameters()[1]) + fmt::format("{}\n", run.evaluated());
        });
      }
      if (step == 2) {
        run.trainer.edit([&] { run.model->parameters()[3].detach().mul_(0.5); });
        seen += text_of(run.trainer.gather("2.bias"));
      }
    }
    expect_same_everywhere(job, seen);
    return seen;
  });
}

TEST(ReplicaParameters, AreSeenBetweenStepsAsOnOneHost) {
  const auto alone = seen_between_steps(1);
  ASSERT_FALSE(alone.empty());
  for (const int hosts : {2, 3}) {
    const Spread spread(hosts);
    EXPECT_EQ(seen_between_steps(3), alone) << hosts << " hosts";
  }
}

std::string gradients_in_halves(int workers) {
  return text_of_rank_0(workers, [](const Job& job) {
    Training run(job);
    run.step();
    run.trainer.accumulate([&](Shard& shard) { return run.answer(shard); });
    auto seen = text_of(run.trainer.gradient("0.weight")) +
                fmt::format("{}\n", run.trainer.gradient_norm());
    run.trainer.apply();
    expect_same_everywhere(job, seen);
    return seen;
  });
}

// promise: clusters#several-hosts
TEST(ReplicaParameters, GradientsAreThereOnSeveralHostsWhereAllTakeTheStepInHalves) {
  const auto alone = gradients_in_halves(1);
  ASSERT_FALSE(alone.empty());
  const Spread spread(2);
  EXPECT_EQ(gradients_in_halves(2), alone);
  on_workers(2, [](const Job& job) {
    Training run(job);
    const auto answer = [&](Shard& shard) { return run.answer(shard); };
    if (job.rank() == 0) {
      run.trainer.accumulate(answer);
      EXPECT_THAT(test::text_of<Unsupported>([&] { run.trainer.gradient("0.weight"); }),
                  HasSubstr("gradients of per-replica parameters on several hosts in a step that "
                            "not all workers take in halves"));
      run.trainer.apply();
    } else {
      run.trainer.step(answer);
    }
  });
}

}  // namespace
}  // namespace tutti::test::replica_hosts_cases
