// A variational autoencoder (Kingma and Welling 2014, arXiv 1312.6114) learns to draw pictures. Its
// loss is a sum over pixels and samples, so gradients are added up and not divided
// (docs/update.md). FOLDER has the files of MNIST; without it the program draws discs.
//
//   build/bin/tutti run -n 2 build/bin/vae [EPOCHS [FOLDER]]

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <random>
#include <string>

#include "idx_images.h"
#include "tutti/tutti.h"

namespace {

constexpr std::int64_t kShards = 6;
constexpr std::int64_t kBatch = 20;  // of a shard
constexpr std::int64_t kCodes = 8;   // numbers that describe a picture

/// Discs of any place and size, 28 × 28 pixels. The sample's number decides what is drawn.
struct Discs : torch::data::datasets::Dataset<Discs> {
  Discs(std::size_t first, std::size_t size) : first_(first), size_(size) {}
  torch::data::Example<> get(std::size_t index) override {
    std::mt19937_64 random(first_ + index);
    const auto between = [&](double low, double high) {
      return std::uniform_real_distribution<double>(low, high)(random);
    };
    const auto x = torch::arange(28) - between(8, 20);
    const auto y = torch::arange(28).unsqueeze(1) - between(8, 20);
    const auto distance = (x.square() + y.square()).sqrt();
    return {torch::sigmoid(between(3, 7) - distance).unsqueeze(0), torch::zeros({1})};
  }
  std::optional<std::size_t> size() const override { return size_; }
  std::size_t first_, size_;
};

struct Vae : torch::nn::Module {
  explicit Vae(std::int64_t pixels)
      : encoder(register_module("encoder", torch::nn::Linear(pixels, 200))),
        code(register_module("code", torch::nn::Linear(200, 2 * kCodes))),
        decoder(register_module("decoder", torch::nn::Linear(kCodes, 200))),
        output(register_module("output", torch::nn::Linear(200, pixels))) {}

  /// The negative evidence lower bound in two terms, reconstruction and KL, each a sum over pixels
  /// and samples (equation 10 of the paper).
  std::pair<torch::Tensor, torch::Tensor> losses(const torch::Tensor& pictures) {
    const auto x = pictures.flatten(1);
    const auto codes = code->forward(torch::relu(encoder->forward(x))).chunk(2, 1);
    const auto &mean = codes[0], &log_variance = codes[1];
    const auto z = mean + torch::exp(log_variance / 2) * torch::randn_like(mean);
    const auto logits = output->forward(torch::relu(decoder->forward(z)));
    const auto reconstruction =
        torch::binary_cross_entropy_with_logits(logits, x, {}, {}, at::Reduction::Sum);
    const auto kl = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2;
    return {reconstruction, kl};
  }

  torch::nn::Linear encoder, code, decoder, output;
};

template <class Pictures>
void run(int epochs, Pictures train_set, Pictures test_set) {
  const auto job = tutti::Job::join();
  torch::manual_seed(1);
  Vae model(train_set.get(0).data.numel());
  const auto train_size = static_cast<double>(*train_set.size());
  const auto test_size = static_cast<double>(*test_set.size());
  const torch::data::transforms::Stack<> stack;
  tutti::ShardLoader train_loader(std::move(train_set).map(stack), kBatch);
  tutti::ShardLoader test_loader(std::move(test_set).map(stack), 500);
  tutti::Trainer trainer(job, model, tutti::Adam{.lr = 1e-3},
                         {.shards = kShards, .seed = 1, .divide = tutti::Divide::not_at_all});

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double sum = 0;  // StepResult::loss is a mean over shards
    const auto compute = [&](tutti::Shard& shard, auto& batch) {
      const auto [reconstruction, kl] = model.losses(batch.data);  // noise by the shard's seed
      const auto loss = reconstruction + kl;
      shard.metrics().sum("sum", loss.template item<double>());
      return shard.loss(loss);  // of weight 1, as the samples are added up already
    };
    trainer.run_epoch(train_loader, compute, [&](const auto& r) { sum += r.metrics["sum"]; });
    const auto test = trainer.evaluate(test_loader, [&](auto& batch, tutti::ShardMetrics& sums) {
      const auto [reconstruction, kl] = model.losses(batch.data);
      sums.sum("reconstruction", reconstruction.template item<double>());
      sums.sum("kl", kl.template item<double>());
    });
    if (job.rank() != 0) continue;
    std::printf("epoch %d of %d: loss per sample %.6f; of the test %.6f + %.6f\n", epoch, epochs,
                sum / train_size, test["reconstruction"] / test_size, test["kl"] / test_size);
  }
  if (job.rank() != 0) return;
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(model).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  const int epochs = argc > 1 ? std::stoi(argv[1]) : 10;
  if (argc > 2) run(epochs, IdxImages(argv[2], "train"), IdxImages(argv[2], "t10k"));
  if (argc <= 2) run(epochs, Discs(0, 5000), Discs(5000, 1000));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
