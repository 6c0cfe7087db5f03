#include <c10/util/ScopeExit.h>

#include <utility>

#include "torch/split/classifier.h"

namespace tutti {

void Classifier::begin_step(std::int64_t step, std::int64_t shards) {
  forget();
  step_ = Step{.number = step, .shards = shards};
}

void Classifier::begin_round(std::optional<std::int64_t> shard) {
  step_->shard = shard.value_or(-1);
  step_->is_called = false;
}

void Classifier::join_round() {
  if (step_->is_called) return;
  forward(torch::zeros({0, settings_.features}, settings_.computed),
          torch::zeros({0}, torch::kInt64), true);
}

void Classifier::begin_evaluation(std::function<void(ClassifierUse)> announce) {
  announce_ = std::move(announce);
  is_evaluated_ = true;
}

void Classifier::end_evaluation() noexcept {
  announce_ = nullptr;
  is_evaluated_ = false;
}

void Classifier::join_call(ClassifierUse use) {
  const auto announce = std::exchange(announce_, nullptr);  // it is known
  const auto give_back = c10::make_scope_exit([&] { announce_ = announce; });
  const auto features = torch::zeros({0, settings_.features}, settings_.computed);
  if (use == ClassifierUse::predict) {
    predict(features);
  } else {
    forward(features, torch::zeros({0}, torch::kInt64), false);
  }
}

}  // namespace tutti
