// Buffers that no shard changes keep their bytes, whatever their rule.

#include <limits>

#include "torch/training.h"

namespace tutti::test::unchanged_buffers_cases {
namespace {

struct MaskedImpl : torch::nn::Module {
  MaskedImpl() {
    in = register_module("in", torch::nn::Linear(6, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    out = register_module("out", torch::nn::Linear(5, 3));
    encoding = register_buffer("encoding", torch::randn({1013}));
    half = register_buffer("half", torch::randn({77}).to(torch::kBFloat16));
    wide = register_buffer("wide", torch::randn({65}, torch::kFloat64));
    mask = register_buffer("mask", torch::zeros({4, 5}));
    mask.index_put_({torch::tensor({0, 2}), torch::tensor({1, 4})},
                    std::numeric_limits<float>::lowest());
    moving = register_buffer("moving", torch::zeros({7}));
  }
  /// The mask is added as in attention: it has to stay finite.
  torch::Tensor loss(const torch::Tensor& x, std::int64_t shard, bool moves) {
    if (moves) moving.add_(static_cast<double>(shard + 1));
    const auto scores = torch::softmax(norm(in(x)) + mask, 1);
    return (out(scores) + encoding.mean() + half.mean() + wide.mean()).square().mean();
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor encoding, half, wide, mask, moving;
};
TORCH_MODULE(Masked);

enum class Copies { shared, of_each_logical_worker, that_become_one };

std::string train(int workers, std::int64_t shards, Copies copies) {
  return text_of_rank_0(workers, [&](const Job& job) {
    torch::manual_seed(1);
    Masked model;
    std::vector<torch::Tensor> before;
    for (const auto& buffer : {model->encoding, model->half, model->wide, model->mask}) {
      before.push_back(buffer.clone());
    }
    TrainerOptions options{.shards = shards};
    if (copies != Copies::shared) options.logical_workers = 3;
    if (copies == Copies::that_become_one) options.averaging = local_sgd(1);
    if (copies == Copies::of_each_logical_worker) {
      options.per_replica = [](const std::string& name) {
        return name == "encoding" || name == "mask" || name == "moving";
      };
    }
    Trainer trainer(job, *model, Adam{.lr = 0.01}, options);
    EXPECT_TRUE(torch::equal(model->encoding, before[0]) || job.rank() != 0);
    const auto first = model->encoding.clone();
    std::string hashes;
    while (trainer.steps() < 5) {
      const auto result = trainer.step([&](Shard& shard) {
        const auto x = torch::randn({4, 6}, at::make_generator<at::CPUGeneratorImpl>(shard.seed()));
        // Of some shards alone, and not of all logical workers.
        return shard.loss(model->loss(x, shard.index(), shard.index() == shards - 1));
      });
      EXPECT_TRUE(result.applied) << result.dropped_because;
      hashes += trainer.state_sha256();
    }
    const auto look = [&] {
      EXPECT_TRUE(torch::equal(model->encoding, first));
      EXPECT_TRUE(torch::isfinite(model->mask).all().item<bool>());
      if (job.rank() != 0) return;
      EXPECT_TRUE(torch::equal(model->mask, before[3]));
      EXPECT_TRUE(torch::equal(model->half, before[1]));
      EXPECT_TRUE(torch::equal(model->wide, before[2]));
    };
    look();
    if (copies == Copies::of_each_logical_worker) {
      for (std::int64_t l = 0; l < 3; ++l) {
        trainer.with_logical_worker(l, [&] {
          look();
          EXPECT_EQ(model->moving[0].item<float>() > 0, l == 2);
        });
      }
    } else {
      EXPECT_GT(model->moving[0].item<float>(), 0);  // what one shard changed is averaged
      EXPECT_GT(model->norm->running_var.min().item<float>(), 0);
    }
    return hashes;
  });
}

TEST(UnchangedBuffers, KeepTheirBytesAndStayFinite) {
  for (const std::int64_t shards : {3, 5, 7}) {
    const auto alone = train(1, shards, Copies::shared);
    for (const int workers : {2, 3})
      EXPECT_EQ(train(workers, shards, Copies::shared), alone) << workers;
  }
}

TEST(UnchangedBuffers, OfEachLogicalWorkerToo) {
  for (const auto copies : {Copies::of_each_logical_worker, Copies::that_become_one}) {
    const auto alone = train(1, 7, copies);
    for (const int workers : {2, 3, 5}) EXPECT_EQ(train(workers, 7, copies), alone) << workers;
  }
}

}  // namespace
}  // namespace tutti::test::unchanged_buffers_cases
