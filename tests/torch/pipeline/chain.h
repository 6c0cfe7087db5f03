#pragma once

// The least model that a pipeline can cut, and a step of it.

#include <string>
#include <utility>
#include <vector>

#include "torch/training.h"
#include "tutti/pipeline.h"

namespace tutti::test::pipeline_cases {

/// Four layers of one parameter each.
struct Chain : torch::nn::Module {
  explicit Chain(int layers = 4) {
    torch::manual_seed(2);
    for (int i = 0; i < layers; ++i) {
      linear.push_back(register_module("linear" + std::to_string(i), torch::nn::Linear(5, 5)));
    }
  }
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all;
    for (auto& one : linear) all.push_back(pipeline_layer(one));
    return all;
  }
  std::vector<torch::nn::Linear> linear;
};

inline torch::Tensor samples_of(std::int64_t step, std::int64_t shard) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * step + shard));
  return torch::randn({2, 5}, generator);
}

inline Pipeline pipeline_of(std::vector<PipelineLayer> layers, int stages,
                            const char* kind = "1f1b") {
  return {.layers = std::move(layers), .stages = stages, .schedule = kind};
}

inline StepResult step_of(Trainer& trainer) {
  const auto step = trainer.steps();
  return trainer.step(
      [step](Shard& shard) -> TensorList { return {samples_of(step, shard.index())}; },
      [](Shard& shard, const TensorList& y) { return shard.loss(y[0].square().mean()); });
}

}  // namespace tutti::test::pipeline_cases
