// A generator learns to make pictures like those of a data set, from a discriminator that learns to
// tell them apart (Radford et al. 2016, arXiv 1511.06434): two models that take turns. FOLDER has
// the files of MNIST. plain/dcgan.cpp is the program of one process, and 05_dcgan.cpp the same on
// any number of workers (docs/how.md goes through the difference).
//
//   build/bin/plain_dcgan FOLDER EPOCHS
//   build/bin/tutti run -n 2 build/bin/dcgan FOLDER EPOCHS

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "idx_images.h"
#include "tutti/tutti.h"

namespace {

constexpr std::int64_t kBatch = 64;
constexpr std::int64_t kNoise = 100;

torch::nn::Sequential make_generator() {
  const auto grow = [](std::int64_t in, std::int64_t out, std::int64_t kernel) {
    return torch::nn::ConvTranspose2dOptions(in, out, kernel).bias(false);
  };
  return torch::nn::Sequential(
      torch::nn::ConvTranspose2d(grow(kNoise, 64, 4)), torch::nn::BatchNorm2d(64),
      torch::nn::ReLU(),  // 4 × 4
      torch::nn::ConvTranspose2d(grow(64, 32, 3).stride(2).padding(1)), torch::nn::BatchNorm2d(32),
      torch::nn::ReLU(),  // 7 × 7
      torch::nn::ConvTranspose2d(grow(32, 16, 4).stride(2).padding(1)), torch::nn::BatchNorm2d(16),
      torch::nn::ReLU(),  // 14 × 14
      torch::nn::ConvTranspose2d(grow(16, 1, 4).stride(2).padding(1)), torch::nn::Tanh());
}

torch::nn::Sequential make_discriminator() {
  const auto shrink = [](std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2dOptions(in, out, 4).stride(2).padding(1).bias(false);
  };
  const auto leaky = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  return torch::nn::Sequential(
      torch::nn::Conv2d(shrink(1, 16)), torch::nn::LeakyReLU(leaky),  // 14 × 14
      torch::nn::Conv2d(shrink(16, 32)), torch::nn::BatchNorm2d(32),
      torch::nn::LeakyReLU(leaky),  // 7 × 7
      torch::nn::Conv2d(shrink(32, 64)), torch::nn::BatchNorm2d(64),
      torch::nn::LeakyReLU(leaky),  // 3 × 3
      torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 1, 3).bias(false)), torch::nn::Sigmoid());
}

void run(const std::string& folder, int epochs) {
  const auto job = tutti::Job::join();
  torch::manual_seed(1);
  auto generator = make_generator();
  auto discriminator = make_discriminator();
  auto pictures = IdxImages(folder, "train")
                      .map(torch::data::transforms::Normalize<>(0.5, 0.5))
                      .map(torch::data::transforms::Stack<>());
  tutti::ShardLoader loader(std::move(pictures), kBatch / 4);
  torch::nn::ModuleDict both;
  both->update({{"generator", generator.ptr()}, {"discriminator", discriminator.ptr()}});
  tutti::Optimizer optimizer(tutti::Adam{.lr = 4e-4, .beta1 = 0.5});
  optimizer.group([](const std::string& name) { return name.starts_with("discriminator."); },
                  tutti::Adam{.lr = 2e-4, .beta1 = 0.5});
  tutti::Trainer trainer(job, *both, optimizer, {.shards = 4});

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double d_loss = 0, g_loss = 0;
    const auto discriminators_turn = [&](tutti::Shard& shard, auto& batch) {
      // The discriminator's turn: it shall say 1 of the data's pictures and 0 of the others.
      const auto real = discriminator->forward(batch.data).flatten();
      const auto almost_1 = torch::empty_like(real).uniform_(0.8, 1.0);
      const auto real_loss = torch::binary_cross_entropy(real, almost_1);
      auto pictures = generator->forward(torch::randn({batch.data.size(0), kNoise, 1, 1}));
      const auto made = discriminator->forward(pictures.detach()).flatten();
      const auto made_loss = torch::binary_cross_entropy(made, torch::zeros_like(made));
      return shard.loss(real_loss + made_loss, batch.data.size(0));
    };
    const auto generators_turn = [&](tutti::Shard& shard) {
      // The generator's turn: the discriminator shall say 1 of what it makes.
      auto pictures = generator->forward(torch::randn({kBatch / 4, kNoise, 1, 1}));
      const auto judged = discriminator->forward(pictures).flatten();
      const auto loss = torch::binary_cross_entropy(judged, torch::ones_like(judged));
      return shard.loss(loss);
    };
    while (trainer.epoch() < epoch) {
      d_loss = trainer.step(*discriminator, loader, discriminators_turn).loss;
      g_loss = trainer.step(*generator, generators_turn).loss;
    }
    if (job.rank() != 0) continue;
    std::printf("epoch %d of %d: loss of the discriminator %.4f, of the generator %.4f\n", epoch,
                epochs, d_loss, g_loss);
  }
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(*both).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: dcgan FOLDER EPOCHS");
  run(argv[1], std::stoi(argv[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
