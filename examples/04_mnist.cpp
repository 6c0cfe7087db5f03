// A convolutional network learns handwritten digits: a loop over batches in each epoch, and a test
// after it. FOLDER has the four files of MNIST. plain/mnist.cpp is the program of one process;
// 04_mnist.cpp and 12_mnist_parallel.cpp are the same on any number of workers, with a Trainer and
// with a DataParallel (docs/data.md goes through the differences).
//
//   build/bin/plain_mnist FOLDER EPOCHS
//   build/bin/tutti run -n 2 build/bin/mnist FOLDER EPOCHS [--device cuda]
//   build/bin/tutti run -n 2 build/bin/mnist_parallel FOLDER EPOCHS [--device cuda]

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "device_option.h"
#include "idx_images.h"
#include "mnist_arguments.h"
#include "tutti/tutti.h"

namespace {

constexpr std::int64_t kTrainBatch = 64;
constexpr std::int64_t kTestBatch = 500;

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(drop->forward(conv2->forward(x)), 2));
    x = torch::relu(hidden->forward(x.flatten(1)));
    x = torch::dropout(x, 0.5, is_training());
    return torch::log_softmax(output->forward(x), 1);
  }

  torch::nn::Conv2d conv1 = register_module(
      "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 10, /*kernel_size=*/5)));
  torch::nn::Conv2d conv2 = register_module(
      "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(10, 20, /*kernel_size=*/5)));
  torch::nn::Dropout2d drop = register_module("drop", torch::nn::Dropout2d(0.5));
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(320, 50));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(50, 10));
};

auto normalized(const std::string& folder, const std::string& part) {
  return IdxImages(folder, part)
      .map(torch::data::transforms::Normalize<>(0.1307, 0.3081))
      .map(torch::data::transforms::Stack<>());
}

void run(const Arguments& arguments) {
  const auto job = tutti::Job::join();
  const auto device = device_of(job, arguments.device);
  torch::manual_seed(1);
  Net model;
  model.to(device);
  auto train_set = normalized(arguments.folder, "train");
  auto test_set = normalized(arguments.folder, "t10k");
  const auto test_size = static_cast<double>(test_set.size().value());
  tutti::ShardLoader train_loader(std::move(train_set), kTrainBatch / 4, {.device = device});
  tutti::ShardLoader test_loader(std::move(test_set), kTestBatch, {.device = device});
  tutti::Trainer trainer(job, model, tutti::Sgd{.lr = 0.01, .momentum = 0.5}, {.shards = 4});

  for (int epoch = 1; epoch <= arguments.epochs; ++epoch) {
    model.train();
    trainer.run_epoch(train_loader, [&](tutti::Shard& shard, auto& batch) {
      const auto scores = model.forward(batch.data);
      const auto loss = torch::nll_loss(scores, batch.target);
      return shard.loss(loss, batch.data.size(0));
    });

    const torch::NoGradGuard no_grad;
    model.eval();
    const auto test = trainer.evaluate(test_loader, [&](auto& batch, tutti::ShardMetrics& sums) {
      const auto scores = model.forward(batch.data);
      const auto losses = torch::nll_loss(scores, batch.target, {}, torch::Reduction::None);
      sums.sum("loss", losses.sum().template item<double>());
      sums.sum("right", scores.argmax(1).eq(batch.target).sum().template item<double>());
    });
    if (job.rank() != 0) continue;
    std::printf("epoch %d of %d: loss of the test %.4f, accuracy %.4f\n", epoch, arguments.epochs,
                test["loss"] / test_size, test["right"] / test_size);
  }
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(model).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  run(arguments_with_device(argc, argv));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
