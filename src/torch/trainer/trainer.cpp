#include "tutti/trainer.h"

#include <fmt/format.h>

#include <filesystem>

#include "comm/group_state.h"
#include "run/files/checkpoint_folders.h"
#include "torch/model/loss_weight.h"
#include "torch/shards/shard_runner.h"
#include "torch/trainer/trainer_state.h"
#include "tutti/error.h"

namespace tutti {

// ---- Shard ----

Shard::Shard(ShardRunner& runner, std::int64_t index, bool is_audit)
    : runner_(runner),
      index_(index),
      count_(runner.shard_count()),
      step_(runner.step()),
      seed_(runner.seed_of(index)),
      is_audit_(is_audit) {}

std::vector<std::int64_t> Shard::indices(std::int64_t dataset_size, std::int64_t batch) {
  return runner_.indices({dataset_size, batch}, index_);
}

std::function<std::optional<std::vector<std::int64_t>>()> Shard::coming_indices(
    std::int64_t dataset_size, std::int64_t batch) const {
  return runner_.coming_indices({dataset_size, batch}, index_);
}

torch::Tensor Shard::state(const std::string& name, const std::function<torch::Tensor()>& init) {
  return runner_.state_of(index_, name, init);
}

/// Only the returned value counts: of two gradients one would be lost.
void Shard::require_first_answer(const char* call) {
  if (answered_by_ == nullptr) {
    answered_by_ = call;
    return;
  }
  throw InvalidArgument(fmt::format(
      "shard {}: {} after {}: a shard has one answer; add up what its loss is made of, and record "
      "the parts by shard.metrics()",
      index_, call, answered_by_));
}

ShardAnswer Shard::loss(const torch::Tensor& value, double weight) {
  require_loss_weight(weight, index_);
  if (weight == 0) return nothing();
  if (!value.defined() || value.numel() != 1) {
    throw InvalidArgument(fmt::format("shard {}: a loss is one number, not {}", index_,
                                      value.defined() ? fmt::format("{} of them", value.numel())
                                                      : std::string("an undefined tensor")));
  }
  if (!value.requires_grad()) {
    throw InvalidArgument(fmt::format(
        "shard {}: the loss has no gradient: no parameter took part in it, or it was computed "
        "without grad mode",
        index_));
  }
  require_first_answer("loss()");
  ShardAnswer answer;
  answer.kind_ = ShardAnswer::Kind::loss;
  answer.loss_ = value;
  answer.weight_ = weight;
  return answer;
}

ShardAnswer Shard::gradients(std::vector<torch::Tensor> gradients, double weight) {
  require_loss_weight(weight, index_);
  if (weight == 0) return nothing();
  require_first_answer("gradients()");
  ShardAnswer answer;
  answer.kind_ = ShardAnswer::Kind::gradients;
  answer.gradients_ = std::move(gradients);
  answer.weight_ = weight;
  return answer;
}

ShardAnswer Shard::nothing() {
  ShardAnswer answer;
  answer.kind_ = ShardAnswer::Kind::nothing;
  return answer;
}

// ---- Trainer ----

Trainer::Trainer(const Job& job, torch::nn::Module& module, const Optimizer& optimizer,
                 const TrainerOptions& options)
    : Trainer(Group(job, "trainer " + options.name, kOneLane), module, optimizer, options) {}

Trainer::Trainer(const Group& group, torch::nn::Module& module, const Optimizer& optimizer,
                 const TrainerOptions& options)
    : state_(std::make_shared<TrainerState>(group, module, optimizer, options)) {}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;

StepResult Trainer::step(const Compute& compute) {
  state_->accumulate({.whole = compute}, false);
  return state_->apply();
}

StepResult Trainer::step(const torch::nn::Module& active, const Compute& compute) {
  state_->accumulate({.whole = compute}, false, &active);
  return state_->apply();
}

StepResult Trainer::step(const Inputs& inputs, const Loss& loss) {
  state_->accumulate({.inputs = inputs, .loss = loss}, false);
  return state_->apply();
}

void Trainer::accumulate(const Compute& compute) { state_->accumulate({.whole = compute}, true); }
void Trainer::accumulate(const Inputs& inputs, const Loss& loss) {
  state_->accumulate({.inputs = inputs, .loss = loss}, true);
}
torch::Tensor Trainer::gradient(const std::string& name) { return state_->folded_gradient(name); }
double Trainer::gradient_norm() { return state_->gradient_norm(); }
StepResult Trainer::apply() { return state_->apply(); }
void Trainer::edit(const std::function<void()>& change) { state_->edit(change); }
Metrics Trainer::evaluate(std::int64_t dataset_size, std::int64_t batch, const Evaluate& compute) {
  return state_->evaluation().evaluate({dataset_size, batch}, compute);
}
void Trainer::with_ema(const std::function<void()>& body) { state_->evaluation().with_ema(body); }
torch::Tensor Trainer::gather(const std::string& name) const {
  return state_->evaluation().gather(name);
}
void Trainer::with_logical_worker(std::int64_t logical, const std::function<void()>& body) {
  state_->evaluation().with_logical_worker(logical, body);
}
void Trainer::keep(const std::string& name, double& value) { state_->keep(name, &value); }
void Trainer::keep(const std::string& name, std::int64_t& value) { state_->keep(name, &value); }
void Trainer::keep(const std::string& name, std::string& value) { state_->keep(name, &value); }
void Trainer::keep(const std::string& name, torch::Tensor& value) { state_->keep(name, &value); }
std::string Trainer::save(const std::string& directory, const SaveOptions& options) {
  state_->save(directory, options);
  return (std::filesystem::path(directory) / name_of_step(steps())).string();
}
void Trainer::save_on_signal(const std::string& directory, const SaveOptions& options) {
  state_->save_on_signal(directory, options);
}
std::optional<std::int64_t> Trainer::load(const std::string& directory,
                                          const LoadOptions& options) {
  return state_->load(directory, options);
}
TrafficReport Trainer::traffic() const { return state_->traffic(); }
std::int64_t Trainer::steps() const { return state_->steps(); }
std::int64_t Trainer::epoch() const { return state_->epoch(); }
std::pair<std::int64_t, std::int64_t> Trainer::shards() const {
  return {state_->shards().begin, state_->shards().end};
}
const Group& Trainer::group() const { return state_->group(); }
std::string Trainer::state_sha256() const { return state_->state_sha256(); }

}  // namespace tutti
