#include <c10/util/ScopeExit.h>

#include <utility>

#include "comm/group_state.h"
#include "torch/classes/classifier.h"

namespace tutti {

std::unique_ptr<Together> Classifier::together() const {
  return announce_ ? std::make_unique<Together>(group_.state()->job()) : nullptr;
}

void Classifier::begin_step(std::int64_t step, std::int64_t shards, Announce announce) {
  forget();
  step_ = Step{.number = step, .shards = shards};
  ++era_;
  announce_ = std::move(announce);
}

void Classifier::begin_shard(std::optional<std::int64_t> shard) {
  step_->shard = shard.value_or(-1);
  step_->is_called = !shard;
  failure_ = nullptr;
}

void Classifier::begin_evaluation(Announce announce) {
  announce_ = std::move(announce);
  is_evaluated_ = true;
  failure_ = nullptr;
}

void Classifier::end_evaluation() noexcept {
  announce_ = nullptr;
  is_evaluated_ = false;
}

void Classifier::join_call(ClassifierUse use) {
  is_joining_ = true;
  const auto end = c10::make_scope_exit([&] { is_joining_ = false; });
  const auto features = torch::zeros({0, settings_.features}, settings_.computed);
  if (use == ClassifierUse::predict) {
    predict(features);
  } else {
    forward(features, torch::zeros({0}, torch::kInt64), !is_evaluated_);
  }
}

}  // namespace tutti
