#include "torch/shards/shard_runner.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <exception>
#include <optional>

#include "comm/group_state.h"
#include "job/alone.h"
#include "memory/memory_need.h"
#include "run/data/leaf_seed.h"
#include "torch/model/resolved.h"
#include "torch/shards/trainer_settings.h"
#include "tutti/error.h"

namespace tutti {

ShardRunner::ShardRunner(const Parts& parts, Options options)
    : parts_(parts),
      options_(std::move(options)),
      zero_copy_(parts.exchange),
      numbers_(parts.host == nullptr ? nullptr
                                     : std::make_unique<DeviceNumbers>(parts.host->device())),
      intake_(parts.model, parts.exchange, parts.sources, &zero_copy_, parts.host, numbers_.get()) {
}

void ShardRunner::attach() {
  const auto& model = parts_.model;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    model.tensor(p).mutable_grad().reset();  // what was there when the Trainer was made
    hooks_.add(model.tensor(p), model.label(p), weak_from_this());
  }
}

void ShardRunner::announce(std::int64_t step, const torch::nn::Module* active) {
  if (parts_.classifiers == nullptr) return;
  parts_.classifiers->begin_step(step, active);
  joins_ = true;
}

void ShardRunner::open(std::int64_t step, double loss_scale) {
  step_ = step;
  loss_scale_ = loss_scale;
  active_.clear();
  hooks_.attach_new();
}

void ShardRunner::run(const Trainer::Compute& compute) {
  program_ = ProgramThread::own();
  if (parts_.classifiers != nullptr) return run_with_all(compute);
  const auto& mine = options_.mine;
  for (auto s = mine.begin; s < mine.end; ++s) run_shard(s, compute);
  if (parts_.audit != nullptr) repeat_shard(compute);
  if (numbers_) bring();
}

/// Every worker takes part in each call of the split classifiers, with a shard or without: one
/// whose shard has failed too, so that no other waits for it. In the end they exchange gradients.
void ShardRunner::run_with_all(const Trainer::Compute& compute) {
  auto& classifiers = *parts_.classifiers;
  joins_ = false;  // whatever comes, this worker has no other way to the others' calls
  std::exception_ptr failed;
  const auto shards = [&] {
    try {
      for (auto s = options_.mine.begin; compute != nullptr && s < options_.mine.end; ++s) {
        classifiers.begin_shard(s);
        run_shard(s, compute);
      }
    } catch (...) {
      failed = std::current_exception();
    }
  };
  try {
    parts_.exchange.protocol().watch_collectives(classifiers.group(),
                                                 [&] { classifiers.run_shards(shards); });
  } catch (...) {
    if (!failed) throw;  // else the layers' group has ended for the same reason
  }
  if (failed) std::rethrow_exception(failed);
}

void ShardRunner::join() noexcept {
  if (parts_.classifiers == nullptr || !std::exchange(joins_, false)) return;
  try {
    run_with_all(nullptr);
  } catch (...) {
    // What has failed before is what is said.
  }
  parts_.classifiers->drop();
}

void ShardRunner::run_shard(std::int64_t index, const Trainer::Compute& compute) {
  if (parts_.audit != nullptr) parts_.audit->begin(index);
  Shard shard(*this, index, false);
  const auto answer = call(compute, shard);
  const bool runs = answer.weight_ > 0;
  begin_leaf(answer.weight_);
  take_gradients(answer);
  parts_.exchange.leaves().end_leaf();
  if (parts_.audit != nullptr && parts_.audit->records()) {
    parts_.audit->close(answer.weight_, shard.metrics_, parts_.states.working_of(index));
  }
  if (numbers_) {
    to_come_.back().metrics = std::move(shard.metrics_);
  } else {
    parts_.notes.add(std::move(shard.metrics_));
  }
  if (!runs) return parts_.buffers.skip();
  const auto logical = parts_.replicas != nullptr ? parts_.replicas->logical_worker_of(index) : 0;
  const auto& mine = parts_.board.mine();
  parts_.buffers.take(logical, mine.ran == 0, mine.own_first_ran[logical] < 0);
  note_ran(logical);
}

/// Calls the closure for a shard: under its seed, with the parameters and buffers of its logical
/// worker.
ShardAnswer ShardRunner::call(const Trainer::Compute& compute, Shard& shard) {
  shard_ = shard.index();
  const auto logical = parts_.replicas != nullptr ? parts_.replicas->logical_worker_of(shard_) : 0;
  if (parts_.replicas != nullptr) parts_.replicas->show(logical);
  parts_.buffers.restore(logical);
  at::autocast::clear_cache();  // the parameters that were cast in it have had their backward
  torch::manual_seed(seed_of(shard_));
  ShardAnswer answer;
  run_alone([&] {
    answer = compute(shard);
    if (parts_.classifiers != nullptr && !repeats()) parts_.classifiers->end_shard();
  });
  note_answer(shard, answer);
  return answer;
}

torch::Tensor ShardRunner::scaled(const torch::Tensor& value) const {
  return loss_scale_ == 1 ? value : value * loss_scale_;
}

// ---- a shard in parts ----

void ShardRunner::enter(std::int64_t shard) {
  shard_ = shard;
  at::autocast::clear_cache();
}

void ShardRunner::run_alone(const std::function<void()>& code) {
  const Alone alone(parts_.exchange.group().state()->job(), where());
  const auto run = [&] { parts_.parameters.run_closure(code, [this] { return where(); }); };
  if (parts_.host == nullptr) return run();
  const auto no_room = [this](const std::string& what) {
    return OutOfMemory(fmt::format(
        "{}: {}; Tutti holds {} of parameters there, and of this step {} of gradients' sums: more "
        "shards, of fewer rows each, or recompute() need less (docs/gpu.md#memory)",
        where(), what, format_bytes(parts_.host->parameter_bytes()),
        format_bytes(intake_.device().bytes_held())));
  };
  try {
    run();
  } catch (const OutOfMemory& error) {
    throw no_room(error.what());
  } catch (const c10::OutOfMemoryError& error) {
    throw no_room(error.what_without_backtrace());
  }
}

std::optional<ShardRunner::Loss> ShardRunner::loss_of(Shard& shard, const ShardAnswer& answer) {
  note_answer(shard, answer);
  if (answer.kind_ == ShardAnswer::Kind::gradients) {
    throw InvalidArgument(fmt::format(
        "shard {}: shard.gradients() in a pipeline, whose stages find them: return shard.loss()",
        shard_));
  }
  if (answer.weight_ == 0) return {};
  return Loss{scaled(answer.loss_), answer.weight_};
}

void ShardRunner::backward(const std::function<void()>& run, Redirect redirect) {
  redirect_ = std::move(redirect);
  in_backward_ = true;
  std::optional<ZeroCopyGradients::Watch> watch;
  if (parts_.exchange.nodes().leaves().in_leaf()) watch.emplace(zero_copy_);
  run_alone(run);
  in_backward_ = false;
  redirect_ = nullptr;
}

void ShardRunner::begin_leaf(double weight) {
  parts_.notes.same_shards().begin_shard();
  parts_.exchange.leaves().begin_leaf(weight);
}

void ShardRunner::write(std::size_t parameter, const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  in_backward_ = true;
  gradient(parameter, value);
  in_backward_ = false;
}

void ShardRunner::end_leaf(bool runs) {
  parts_.exchange.leaves().end_leaf();
  if (runs) note_ran(0);
}

/// A backward that has thrown may have left a hook running, on a thread of a device.
void ShardRunner::drop() noexcept {
  const std::lock_guard lock(hooking_);
  in_backward_ = false;
  redirect_ = nullptr;
  intake_.drop();
  to_come_.clear();
  if (numbers_) numbers_->drop();
}

std::string ShardRunner::where() const {
  return fmt::format("shard {} of Trainer \"{}\"", shard_, options_.name);
}

void ShardRunner::take_gradients(const ShardAnswer& answer) {
  if (answer.weight_ == 0) return;
  run_alone([&] {
    if (parts_.classifiers != nullptr) {
      parts_.classifiers->weigh(answer.weight_, answer.kind_ == ShardAnswer::Kind::loss);
    }
    if (answer.kind_ == ShardAnswer::Kind::loss) run_backward(answer.loss_);
    if (answer.kind_ == ShardAnswer::Kind::gradients) hand_in(answer.gradients_);
  });
}

/// Computes the shard for the audit, without any effect on the step.
void ShardRunner::repeat_shard(const Trainer::Compute& compute) {
  const auto index = parts_.audit->begin_repetition();
  if (!index) return;
  try {
    Shard shard(*this, *index, true);
    const auto answer = call(compute, shard);
    take_gradients(answer);
    parts_.audit->close(answer.weight_, shard.metrics_, parts_.audit->states().working_of(*index));
  } catch (...) {
    parts_.audit->rethrow();
  }
}

void ShardRunner::run_backward(const torch::Tensor& loss) {
  in_backward_ = true;
  std::optional<ZeroCopyGradients::Watch> watch;
  if (!repeats()) watch.emplace(zero_copy_);
  if (parts_.classifiers != nullptr) parts_.classifiers->set_backward(true);
  scaled(loss).backward();
  if (parts_.classifiers != nullptr) parts_.classifiers->set_backward(false);
  in_backward_ = false;
}

void ShardRunner::hand_in(const std::vector<torch::Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  if (gradients.size() != parts_.model.parameters().size()) {
    throw InvalidArgument(fmt::format("shard {}: {} gradients for {} parameters", shard_,
                                      gradients.size(), parts_.model.parameters().size()));
  }
  in_backward_ = true;
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    if (!gradients[p].defined()) continue;
    const auto& tensor = parts_.model.tensor(p);
    if (gradients[p].sizes() != tensor.sizes() || gradients[p].dtype() != tensor.dtype()) {
      throw InvalidArgument(
          fmt::format("shard {}: the gradient of \"{}\" has another shape or type", shard_,
                      parts_.model.name(p)));
    }
    if (gradients[p].device() != tensor.device()) {
      throw InvalidArgument(fmt::format(
          "shard {}: the gradient of \"{}\" is on {}, and the "
          "parameter on {}",
          shard_, parts_.model.name(p), gradients[p].device().str(), tensor.device().str()));
    }
    gradient(p, scaled(gradients[p]));
  }
  in_backward_ = false;
}

/// Hooks of a model on a device call it by a thread of libtorch's, while the program's waits.
void ShardRunner::gradient(std::size_t parameter, const torch::Tensor& value) {
  const std::lock_guard lock(hooking_);
  std::optional<WorksFor> works;
  if (parts_.host != nullptr) works.emplace(program_);
  if (!in_backward_) {
    throw InvalidArgument(fmt::format(
        "a backward reached parameter \"{}\" of Trainer \"{}\" outside of its steps: in a step, "
        "return "
        "shard.loss(value), or shard.gradients(torch::autograd::grad(...)), and leave the backward "
        "to the Trainer; where another model's loss runs through this one, take its parameters out "
        "of that backward by requires_grad_(false)",
        parts_.model.name(parameter), options_.name));
  }
  if (!active_.empty() && active_[parameter] == 0) {
    throw InvalidArgument(fmt::format(
        "shard {}: a gradient of \"{}\", which this step is not about: leave its requires_grad as "
        "it is, and hand in an undefined one",
        shard_, parts_.model.name(parameter)));
  }
  intake_.check(parameter, value);
  if (redirect_ && redirect_(parameter, value)) return;
  const bool counts = !repeats();
  if (counts ? parts_.exchange.leaves().finished(parameter) : parts_.audit->has(parameter)) {
    throw Unsupported(fmt::format(
        "parameter \"{}\": a backward inside the backward (reentrant checkpointing) reached it",
        parts_.model.name(parameter)));
  }
  const auto laid_out = intake_.laid_out(parameter, value);
  if (parts_.audit != nullptr && parts_.audit->records()) {
    parts_.audit->gradient(parameter, laid_out.hash());
  }
  if (!counts) return;
  if (auto& same = parts_.notes.same_shards(); same.looks()) {
    const auto values = on_host(laid_out.values());
    same.add(parameter, values.const_data_ptr(), values.nbytes());
  }
  intake_.write(parameter, laid_out, true, loss_scale_);
}

void ShardRunner::accumulated(std::size_t parameter) {
  const auto value = hooks_.take_accumulated(parameter);
  if (value.defined()) gradient(parameter, value);
}

}  // namespace tutti
