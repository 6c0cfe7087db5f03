// Batches that a ShardLoader brings to the test device.

#include <string>
#include <vector>

#include "device_parallel/device_workers.h"

namespace tutti::test::device_loader_cases {
namespace {

using test_device::Held;
using ::testing::HasSubstr;
namespace nn = torch::nn;

/// 50 samples of 6 numbers; the target is the sample's index.
class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(index);
    return {torch::randn({6}, generator), torch::tensor(static_cast<double>(index))};
  }
  torch::optional<std::size_t> size() const override { return 50; }
};

std::string trained(const Job& job, c10::Device where, const LoaderOptions& options) {
  torch::manual_seed(3);
  nn::Sequential net(nn::Linear(6, 17), nn::ReLU(), nn::Linear(17, 1));
  net->to(where);
  Trainer trainer(job, *net, Adam{.lr = 0.01}, {.shards = 4});
  ShardLoader loader(Samples().map(torch::data::transforms::Stack<>()), 3, options);
  ShardLoader test_loader(Samples().map(torch::data::transforms::Stack<>()), 8, options);
  std::string seen;
  for (int epoch = 0; epoch < 3; ++epoch) {
    trainer.run_epoch(loader, [&](Shard& shard, auto& batch) {
      EXPECT_EQ(batch.data.device(), where);
      const auto out = net->forward(batch.data).squeeze(1);
      return shard.loss(torch::mse_loss(out, batch.target.to(torch::kFloat32)), batch.data.size(0));
    });
    const auto metrics = trainer.evaluate(test_loader, [&](auto& batch, ShardMetrics& sums) {
      EXPECT_EQ(batch.target.device(), where);
      sums.sum("target", batch.target.sum().template item<double>());
      sums.sum("out", net->forward(batch.data).sum().template item<double>());
    });
    EXPECT_EQ(metrics.at("target"), 49 * 25);
    seen += fmt::format("{} {}\n", metrics.at("out"), trainer.state_sha256());
  }
  return seen;
}

// promise: shard_loader.h#device
TEST(DeviceLoader, BringsTheBatchesOfTheHostBesideTheProgram) {
  for (const std::int64_t prefetch : {0, 2, 5}) {
    for (const std::int64_t threads : {1, 3}) {
      expect_bytes_of_the_cpu([&](const Job& job, c10::Device where) {
        return trained(job, where, {.prefetch = prefetch, .threads = threads, .device = where});
      });
    }
  }
}

/// Not an Example, though it has what one has.
struct Words {
  torch::Tensor data;
  torch::Tensor target;
  torch::Tensor mask;
};

class Unknown : public torch::data::datasets::BatchDataset<Unknown, Words> {
 public:
  Words get_batch(c10::ArrayRef<std::size_t>) override {
    return {torch::zeros({2}), torch::zeros({1}), {}};
  }
  torch::optional<std::size_t> size() const override { return 4; }
};

TEST(DeviceLoader, KnowsTensorsExamplesPairsAndVectorsAlone) {
  on_device_workers(1, Held::kSideStreams, [](const Job& job) {
    ShardLoader loader(Unknown(), 2, {.device = local_device(job)});
    EXPECT_THAT(text_of<InvalidArgument>([&] {
                  loader.read({0, 1});
                }),
                HasSubstr("send them in the closure"));
    torch::data::Example<> example(torch::zeros({2}), torch::zeros({1}));
    std::pair<torch::Tensor, std::vector<torch::data::Example<>>> batch{torch::zeros({1}),
                                                                        {example, example}};
    std::vector<torch::Tensor*> tensors;
    EXPECT_TRUE(detail::list_tensors(batch, tensors));
    EXPECT_EQ(tensors.size(), 5u);
    auto sparse = torch::eye(3).to_sparse();
    EXPECT_THAT(
        text_of<InvalidArgument>([&] { detail::BatchSender(local_device(job)).send({&sparse}); }),
        HasSubstr("a batch has a sparse tensor"));
    torch::data::Example<torch::Tensor, torch::data::example::NoTarget> alone(torch::zeros({1}));
    EXPECT_TRUE(detail::list_tensors(alone, tensors));
    EXPECT_EQ(tensors.size(), 6u);
  });
}

}  // namespace
}  // namespace tutti::test::device_loader_cases
