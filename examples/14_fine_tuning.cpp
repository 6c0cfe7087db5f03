// Fine-tuning: a classifier of few samples begins with the body of another model. First its head
// learns alone, then all layers do, the body at a lower rate. PATH is a safetensors file of the
// other model's weights; where it is none, the program trains that model itself, on another task,
// and PATH is the folder of its checkpoint.
//
//   build/bin/tutti run -n 2 build/bin/fine_tuning [PATH]

#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <numbers>
#include <string>

#include "tutti/tutti.h"

namespace {

/// Noisy pictures [1, 16, 16] of stripes; with a larger `fineness` they are narrower. The class is
/// that of the direction, of `classes` equal ranges. The sample's number decides what is drawn.
struct Stripes : torch::data::datasets::Dataset<Stripes> {
  Stripes(std::size_t first, std::size_t count, std::int64_t classes, double fineness)
      : first(first), count(count), classes(classes), fineness(fineness) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto random = at::make_generator<at::CPUGeneratorImpl>(first + index);
    const auto numbers = torch::rand({3}, random);
    const auto angle = numbers[0] * std::numbers::pi;
    const auto x = torch::arange(16), y = x.unsqueeze(1);
    const auto along = (x * angle.cos() + y * angle.sin()) * (fineness + numbers[1]);
    return {((along + 6.3 * numbers[2]).sin() + torch::randn({16, 16}, random)).unsqueeze(0),
            (numbers[0] * classes).to(torch::kInt64)};
  }
  std::optional<std::size_t> size() const override { return count; }

  std::size_t first, count;
  std::int64_t classes;
  double fineness;
};

struct Net : torch::nn::Module {
  explicit Net(std::int64_t classes)
      : head(register_module("head", torch::nn::Linear(32, classes))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return head->forward(body->forward(x).flatten(1));
  }

  torch::nn::Sequential body = register_module(
      "body", torch::nn::Sequential(torch::nn::Conv2d(1, 16, 5), torch::nn::ReLU(),
                                    torch::nn::MaxPool2d(2), torch::nn::Conv2d(16, 32, 3),
                                    torch::nn::ReLU(), torch::nn::AdaptiveAvgPool2d(1)));
  torch::nn::Linear head;
};

/// Trains for some epochs, and tells how many of 1000 other pictures are then recognised.
void train(const char* what, tutti::Trainer& trainer, Net& model, const Stripes& set, int epochs) {
  const torch::data::transforms::Stack<> stack;
  tutti::ShardLoader loader(Stripes(set).map(stack), 8);
  tutti::ShardLoader test_loader(Stripes(1000000, 1000, set.classes, set.fineness).map(stack), 250);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    trainer.run_epoch(loader, [&](tutti::Shard& shard, auto& batch) {
      const auto scores = model.forward(batch.data);
      return shard.loss(torch::cross_entropy_loss(scores, batch.target), batch.data.size(0));
    });
  }
  const auto test = trainer.evaluate(test_loader, [&](auto& batch, tutti::ShardMetrics& metrics) {
    const auto right = model.forward(batch.data).argmax(1).eq(batch.target);
    metrics.sum("right", right.sum().template item<double>());
  });
  if (trainer.group().rank() != 0) return;
  std::printf("%s: %.4f of the test's pictures are recognised\n", what, test["right"] / 1000);
}

/// The file of weights of a model that tells 8 directions apart, in a checkpoint in `folder`.
std::string weights_of_other_task(const tutti::Job& job, const std::string& folder) {
  Net model(8);
  tutti::Trainer trainer(job, model, tutti::Adam{.lr = 3e-3},
                         {.shards = 6, .seed = 1, .name = "other task"});
  train("other task, of 8 classes", trainer, model, Stripes(0, 4000, 8, 0.4), 6);
  return trainer.save(folder, {.keep = 1}) + "/parameters.safetensors";
}

void run(const std::string& path) {
  const auto job = tutti::Job::join();
  torch::manual_seed(1);
  const auto file =
      std::filesystem::is_regular_file(path) ? path : weights_of_other_task(job, path);
  Net model(12);
  const auto name_here = [](const std::string& name) {
    const auto own = name.starts_with("module.") ? name.substr(7) : name;  // of Python's DDP
    return own.starts_with("head.") ? std::string() : own;                 // the head is new
  };
  const auto loaded = tutti::load_weights(model, file, {.rename = name_here, .strict = false});
  if (job.rank() == 0) std::printf("%zu tensors stay as they are\n", loaded.missing.size());

  tutti::Optimizer optimizer(tutti::Adam{.lr = 1e-2});
  optimizer.group([](const std::string& name) { return name.starts_with("body."); },
                  tutti::Adam{.lr = 1e-3});
  tutti::Trainer trainer(job, model, optimizer, {.shards = 6, .seed = 2});
  const Stripes few(500000, 240, 12, 0.8);
  for (auto& parameter : model.body->parameters()) parameter.requires_grad_(false);
  train("the head alone", trainer, model, few, 20);
  for (auto& parameter : model.body->parameters()) parameter.requires_grad_(true);
  train("all layers", trainer, model, few, 20);
  if (job.rank() != 0) return;
  std::printf("parameters sha256 %s\n", tutti::parameters_sha256(model).c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  run(argc > 1 ? argv[1] : "fine_tuning");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
