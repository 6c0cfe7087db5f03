// The models of the exactness matrix, beside the same steps written by hand in plain libtorch: one
// process, one shard after the other, sums, clips and update as the textbook has them.

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>

#include "run/data/leaf_seed.h"
#include "torch/exact_cases.h"

namespace tutti::test::exact {
namespace {

constexpr std::int64_t kShards = 5;
constexpr std::int64_t kManySteps = 20;

/// Each parameter once, however many names it has.
std::vector<torch::Tensor> parameters_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : module.parameters()) {
    const bool known = std::any_of(all.begin(), all.end(),
                                   [&](const auto& other) { return other.is_same(parameter); });
    if (!known) all.push_back(parameter);
  }
  return all;
}

/// float32 copies that SGD updates, and the parameters that follow them.
class ByHand {
 public:
  ByHand(const Task& task, const TrainerOptions& options)
      : task_(task), options_(options), parameters_(parameters_of(*task.module)) {
    for (const auto& parameter : parameters_) {
      masters_.push_back(parameter.detach().to(torch::kFloat32).clone());
    }
    optimizer_ = std::make_unique<torch::optim::SGD>(
        masters_, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  }

  /// ‖g‖₂ before clipping.
  double step(std::int64_t number) {
    double weights = 0;
    for (auto& master : masters_) master.mutable_grad().reset();
    for (std::int64_t shard = 0; shard < kShards; ++shard) {
      const auto seed = leaf_seed(options_.seed, number, shard);
      torch::manual_seed(seed);
      const auto loss = task_.loss({seed, number, shard});
      if (!loss) continue;
      loss->backward();
      weights += weight_of(shard);
      for (std::size_t p = 0; p < parameters_.size(); ++p) add(p, weight_of(shard));
    }
    const torch::NoGradGuard no_grad;
    double squares = 0;
    for (auto& master : masters_) {
      if (!master.grad().defined()) continue;
      master.grad().div_(weights);
      squares += std::pow(master.grad().norm().item<double>(), 2);
    }
    const auto norm = std::sqrt(squares);
    for (auto& master : masters_) {
      if (master.grad().defined()) clip(master.grad(), norm);
    }
    optimizer_->step();
    for (std::size_t p = 0; p < parameters_.size(); ++p) parameters_[p].copy_(masters_[p]);
    return norm;
  }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }

 private:
  void add(std::size_t p, double weight) {
    auto& gradient = parameters_[p].mutable_grad();
    if (!gradient.defined()) return;
    const auto part = gradient.to(torch::kFloat32) * weight;
    auto& sum = masters_[p].mutable_grad();
    sum = sum.defined() ? sum + part : part;
    gradient.reset();
  }
  void clip(torch::Tensor gradient, double norm) const {
    const auto& clip = options_.clip;
    const auto own = gradient.norm().item<double>();
    if (clip.norm > 0) gradient.mul_(std::min(1.0, clip.norm / (norm + 1e-6)));
    if (clip.parameter_norm > 0) gradient.mul_(std::min(1.0, clip.parameter_norm / (own + 1e-6)));
    if (clip.value > 0) gradient.clamp_(-clip.value, clip.value);
  }

  const Task& task_;
  TrainerOptions options_;
  std::vector<torch::Tensor> parameters_, masters_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

class TrainerValues : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

// promise: clip.h#norm, clip.h#parameter_norm, clip.h#value
// promise: clip.h#Clip
TEST_P(TrainerValues, AreThoseOfStepsWrittenByHand) {
  const std::string model = std::get<0>(GetParam());
  const std::string way = std::get<1>(GetParam());
  on_workers(2, [&](const Job& job) {
    torch::manual_seed(7);
    const auto task = make(model);
    torch::manual_seed(7);
    const auto task_by_hand = make(model);
    auto options = options_of(way);
    options.shards = kShards;
    ByHand by_hand(task_by_hand, options);
    Trainer trainer(job, *task.module, optimizer_of("sgd"), options);
    const auto parameters = parameters_of(*task.module);
    // A value may be rounded to the other side once, and goes on from there.
    const double tolerance = model == "half" ? 1e-2 : 2e-5;
    for (std::int64_t step = 1; step <= kManySteps; ++step) {
      const auto result = trainer.step([&](Shard& shard) { return answer_of(task, shard); });
      const auto norm = by_hand.step(step);
      ASSERT_TRUE(result.applied) << result.dropped_because;
      if (way == "norm clip") {
        ASSERT_TRUE(result.gradient_norm);
        EXPECT_NEAR(*result.gradient_norm, norm, (model == "half" ? 1e-2 : 1e-4) * norm);
        EXPECT_GT(norm, options.clip.norm) << "the clip does not bind";
      }
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const auto apart = (parameters[p] - by_hand.parameters()[p]).abs().max().item<double>();
        ASSERT_LE(apart, tolerance) << "parameter " << p << " after step " << step;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, TrainerValues,
                         // Rows are compared in row_sparse_test.cpp.
                         ::testing::Combine(::testing::ValuesIn(std::begin(kModels),
                                                                std::end(kModels) - 1),
                                            ::testing::Values("plain", "norm clip", "value clips")),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param), "sgd", std::get<1>(info.param));
                         });

}  // namespace
}  // namespace tutti::test::exact
