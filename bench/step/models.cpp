#include "step/models.h"

#include <map>
#include <utility>
#include <vector>

#include "common/control.h"

namespace bench {
namespace {

namespace nn = torch::nn;

using Batch = std::pair<torch::Tensor, torch::Tensor>;  ///< inputs and targets

/// What a model is trained on.
struct Recipe {
  std::shared_ptr<nn::Module> model;
  std::function<Batch(at::Generator)> draw;
  std::function<torch::Tensor(const Batch&)> loss;
};

Recipe mlp_of(int layers, int width, int times) {
  nn::Sequential model;
  for (int layer = 0; layer < layers; ++layer) {
    model->push_back(nn::Linear(width, width));
    model->push_back(nn::ReLU());
  }
  const auto draw = [=](const at::Generator& generator) -> Batch {
    auto x = torch::randn({16 * times, width}, generator);
    return {x, torch::randn({16 * times, width}, generator)};
  };
  return {model.ptr(), draw, [model](const Batch& batch) mutable {
            return torch::mse_loss(model->forward(batch.first), batch.second);
          }};
}

Recipe mlp(int times) { return mlp_of(8, 1024, times); }
Recipe mlp25m(int times) { return mlp_of(6, 2048, times); }
Recipe mlp50m(int times) { return mlp_of(12, 2048, times); }

struct CharacterModel : nn::Module {
  explicit CharacterModel(std::int64_t characters) {
    embedding = register_module("embedding", nn::Embedding(characters, 256));
    lstm = register_module("lstm",
                           nn::LSTM(nn::LSTMOptions(256, 512).num_layers(2).batch_first(true)));
    output = register_module("output", nn::Linear(512, characters));
  }
  torch::Tensor forward(const torch::Tensor& text) {
    return output->forward(std::get<0>(lstm->forward(embedding->forward(text))));
  }
  nn::Embedding embedding{nullptr};
  nn::LSTM lstm{nullptr};
  nn::Linear output{nullptr};
};

Recipe lstm(int times) {
  const int rows = 8 * times;
  auto model = std::make_shared<CharacterModel>(100);
  const auto draw = [=](const at::Generator& generator) -> Batch {
    auto x = torch::randint(100, {rows, 64}, generator);
    return {x, torch::randint(100, {rows * 64}, generator)};
  };
  return {model, draw, [=](const Batch& batch) {
            const auto scores = model->forward(batch.first).reshape({rows * 64, 100});
            return torch::cross_entropy_loss(scores, batch.second);
          }};
}

/// The cross entropy of ten classes.
std::function<torch::Tensor(const Batch&)> ten_classes(nn::Sequential model) {
  return [model](const Batch& batch) mutable {
    return torch::cross_entropy_loss(model->forward(batch.first), batch.second);
  };
}

Recipe convolution(int times) {
  const auto layer = [](int in, int out, int stride) {
    return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1));
  };
  nn::Sequential model(layer(3, 32, 1), nn::ReLU(), layer(32, 64, 2), nn::ReLU(), layer(64, 64, 2),
                       nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(64, 10));
  const auto draw = [=](const at::Generator& generator) -> Batch {
    auto x = torch::randn({16 * times, 3, 32, 32}, generator);
    return {x, torch::randint(10, {16 * times}, generator)};
  };
  return {model.ptr(), draw, ten_classes(model)};
}

/// The network of examples/12_mnist_parallel.cpp, with its dropout.
Recipe digits(int times) {
  const auto layer = [](int in, int out) { return nn::Conv2d(nn::Conv2dOptions(in, out, 5)); };
  nn::Sequential model(layer(1, 10), nn::MaxPool2d(2), nn::ReLU(), layer(10, 20),
                       nn::Dropout2d(0.5), nn::MaxPool2d(2), nn::ReLU(), nn::Flatten(),
                       nn::Linear(320, 50), nn::ReLU(), nn::Dropout(0.5), nn::Linear(50, 10));
  const auto draw = [=](const at::Generator& generator) -> Batch {
    auto x = torch::randn({16 * times, 1, 28, 28}, generator);
    return {x, torch::randint(10, {16 * times}, generator)};
  };
  return {model.ptr(), draw, ten_classes(model)};
}

Recipe bag_of(bool sparse, std::int64_t rows, std::int64_t words) {
  const auto options = nn::EmbeddingBagOptions(200000, 64).sparse(sparse);
  nn::Sequential model(nn::EmbeddingBag(options), nn::Linear(64, 10));
  const auto draw = [=](const at::Generator& generator) -> Batch {
    auto x = torch::randint(200000, {rows, words}, generator);
    return {x, torch::randint(10, {rows}, generator)};
  };
  return {model.ptr(), draw, ten_classes(model)};
}

Recipe embedding(int times) { return bag_of(false, 32 * times, 20); }
Recipe bag(int times) { return bag_of(false, 64 * times, 16); }
Recipe sparse_bag(int times) { return bag_of(true, 64 * times, 16); }

/// 300 tensors of 158 400 elements in all.
Recipe many(int times) {
  nn::Sequential model;
  for (int layer = 0; layer < 150; ++layer) {
    model->push_back(nn::Linear(32, 32));
    model->push_back(nn::Tanh());
  }
  const auto draw = [=](const at::Generator& generator) -> Batch {
    auto x = torch::randn({16 * times, 32}, generator);
    return {x, torch::randn({16 * times, 32}, generator)};
  };
  return {model.ptr(), draw, [model](const Batch& batch) mutable {
            return torch::mse_loss(model->forward(batch.first), batch.second);
          }};
}

/// torch's fused kernel, which its C++ frontend does not offer as an optimizer.
class FusedAdam {
 public:
  explicit FusedAdam(std::vector<torch::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      mean_.push_back(torch::zeros_like(parameter));
      square_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}));
    }
  }

  void step() {
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      gradients.push_back(parameters_[i].grad());
      steps_[i] += 1;
    }
    at::_fused_adam_(parameters_, gradients, mean_, square_, {}, steps_, kLearningRate, 0.9, 0.999,
                     /*weight_decay=*/0.0, /*eps=*/1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  std::vector<torch::Tensor> parameters_, mean_, square_, steps_;
};

}  // namespace

Task make_task(const std::string& name, int times) {
  const auto make = name == "mlp"           ? mlp
                    : name == "mlp25m"      ? mlp25m
                    : name == "mlp50m"      ? mlp50m
                    : name == "lstm"        ? lstm
                    : name == "convolution" ? convolution
                    : name == "digits"      ? digits
                    : name == "embedding"   ? embedding
                    : name == "many"        ? many
                    : name == "bag"         ? bag
                    : name == "sparse_bag"  ? sparse_bag
                                            : nullptr;
  if (make == nullptr) fail("unknown model: " + name);
  const Recipe recipe = make(times);
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (auto& parameter : recipe.model->parameters()) parameter.uniform_(-0.05, 0.05);
  const auto drawn = std::make_shared<std::map<std::int64_t, Batch>>();
  return {recipe.model, [recipe, drawn](std::int64_t batch) {
            auto found = drawn->find(batch);
            if (found == drawn->end()) {
              const auto seed = static_cast<std::uint64_t>(batch) + 1;
              const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
              const auto where = recipe.model->parameters().front().device();
              const auto [x, y] = recipe.draw(generator);
              found = drawn->emplace(batch, Batch{x.to(where), y.to(where)}).first;
            }
            return recipe.loss(found->second);
          }};
}

std::function<void()> make_update(const std::string& name, const torch::nn::Module& model) {
  const auto parameters = model.parameters();
  if (name == "adam") {
    auto adam = std::make_shared<torch::optim::Adam>(parameters, kLearningRate);
    return [adam] {
      adam->step();
      adam->zero_grad();
    };
  }
  if (name != "fused") fail("unknown optimizer: " + name);
  auto adam = std::make_shared<FusedAdam>(parameters);
  return [adam, parameters] {
    adam->step();
    for (auto& parameter : parameters) parameter.mutable_grad().reset();
  };
}

}  // namespace bench
