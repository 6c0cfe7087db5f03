// What a Trainer does for one shard: its closure, its backward, its gradients on their way to the
// step exchange, its samples.

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "run/leaf_seed.h"
#include "torch/model/incoming_gradient.h"
#include "torch/model/row_tensors.h"
#include "torch/trainer/trainer_state.h"
#include "tutti/error.h"

namespace tutti {

std::uint64_t TrainerState::seed_of(std::int64_t shard) const {
  return leaf_seed(options_.seed, step(), shard);
}

void TrainerState::run_shard(std::int64_t index, const Trainer::Compute& compute) {
  largest_ = largest_own_ = 0;
  if (audit_) audit_->begin(index);
  Shard shard(*this, index, false);
  const auto answer = call(compute, shard);
  const bool runs = answer.weight_ > 0;
  exchange_->begin_leaf(answer.weight_);
  take_gradients(answer);
  exchange_->end_leaf();
  if (audit_ && audit_->records()) {
    audit_->end(answer.weight_, shard.metrics_, states_.working_of(index));
  }
  metrics_.push_back(std::move(shard.metrics_));
  if (!runs) return buffers_->skip();
  const auto logical = replicas_ ? replicas_->logical_worker_of(index) : 0;
  auto& mine = board_->mine();
  mine.all.bound += largest_;
  mine.own[logical].bound += largest_own_;
  auto& own_first = mine.own_first_ran[logical];
  buffers_->take(logical, mine.ran == 0, own_first < 0);
  if (own_first < 0) own_first = index;
  if (mine.ran++ == 0) mine.first_ran = index;
}

/// Calls the closure for a shard: under its seed, with the parameters and buffers of its logical
/// worker.
ShardAnswer TrainerState::call(const Trainer::Compute& compute, Shard& shard) {
  shard_ = shard.index();
  const auto logical = replicas_ ? replicas_->logical_worker_of(shard_) : 0;
  if (replicas_) replicas_->show(logical);
  buffers_->restore(logical);
  at::autocast::clear_cache();  // the parameters that were cast in it have had their backward
  torch::manual_seed(seed_of(shard_));
  auto answer = compute(shard);
  if (answer.kind_ == ShardAnswer::Kind::none) {
    throw InvalidArgument(fmt::format(
        "shard {}: its closure gave no answer: return shard.loss(…), shard.gradients(…) or "
        "shard.nothing()",
        shard_));
  }
  if (answer.kind_ == ShardAnswer::Kind::loss) {
    shard.metrics_.weighted_mean(kLossName, answer.loss_.item<double>(), answer.weight_);
  }
  return answer;
}

void TrainerState::take_gradients(const ShardAnswer& answer) {
  if (answer.weight_ == 0) return;
  if (answer.kind_ == ShardAnswer::Kind::loss) run_backward(answer.loss_);
  if (answer.kind_ == ShardAnswer::Kind::gradients) hand_in(answer.gradients_);
}

/// For the audit: nothing of it counts.
void TrainerState::repeat_shard(const Trainer::Compute& compute) {
  const auto index = audit_->begin_repetition(states_);
  if (!index) return;
  try {
    Shard shard(*this, *index, true);
    const auto answer = call(compute, shard);
    take_gradients(answer);
    audit_->end(answer.weight_, shard.metrics_, audit_->states().working_of(*index));
  } catch (...) {
    audit_->rethrow();
  }
}

void TrainerState::run_backward(const torch::Tensor& loss) {
  in_backward_ = true;
  std::optional<ZeroCopyGradients::Watch> watch;
  if (!repeats()) watch.emplace(*zero_copy_);
  (scale_.factor == 1 ? loss : loss * scale_.factor).backward();
  in_backward_ = false;
}

void TrainerState::hand_in(const std::vector<torch::Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  if (gradients.size() != model_.parameters().size()) {
    throw InvalidArgument(fmt::format("shard {}: {} gradients for {} parameters", shard_,
                                      gradients.size(), model_.parameters().size()));
  }
  in_backward_ = true;
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    if (!gradients[p].defined()) continue;
    const auto& tensor = model_.tensor(p);
    if (gradients[p].sizes() != tensor.sizes() || gradients[p].dtype() != tensor.dtype()) {
      throw InvalidArgument(fmt::format(
          "shard {}: the gradient of \"{}\" has another shape or type", shard_, model_.name(p)));
    }
    gradient(p, scale_.factor == 1 ? gradients[p] : gradients[p] * scale_.factor);
  }
  in_backward_ = false;
}

std::vector<std::int64_t> TrainerState::indices(const DataRequest& request, std::int64_t shard) {
  // The audited shard may be another worker's: how workers ask is compared when all have run.
  if (!repeats() && request_ && *request_ != request) {
    throw InvalidArgument(fmt::format(
        "shard {} asks for {} of {} samples, before that {} of {} were asked for in this step: all "
        "shards of a step ask one loader, once",
        shard, request.batch, request.dataset_size, request_->batch, request_->dataset_size));
  }
  data_.check(request);
  if (repeats()) return data_.indices(request, shard);
  request_ = request;
  if (last_that_asked_ != shard) ++board_->mine().asked;
  last_that_asked_ = shard;
  return data_.indices(request, shard);
}

std::function<std::optional<std::vector<std::int64_t>>()> TrainerState::coming_indices(
    const DataRequest& request, std::int64_t shard) const {
  data_.check(request);
  if (repeats()) shard = mine_.end - 1;  // this worker's own are over
  return [order = data_, request, shard, mine = mine_, shards = options_.shards,
          epoch = data_.position().epoch]() mutable -> std::optional<std::vector<std::int64_t>> {
    if (mine.count() == 0 || order.position().epoch != epoch) return {};
    if (++shard == mine.end) {
      order.advance(request, shards);
      shard = mine.begin;
      if (order.position().epoch != epoch) return {};
    }
    return order.indices(request, shard);
  };
}

void TrainerState::gradient(std::size_t parameter, const torch::Tensor& value) {
  if (!in_backward_) {
    throw InvalidArgument(fmt::format(
        "a backward reached parameter \"{}\" of Trainer \"{}\" outside of its steps: in a step, "
        "return "
        "shard.loss(value), or shard.gradients(torch::autograd::grad(...)), and leave the backward "
        "to the Trainer; where another model's loss runs through this one, take its parameters out "
        "of that backward by requires_grad_(false)",
        model_.name(parameter), options_.name));
  }
  if (active_ != 0 && active_set_[parameter] == 0) {
    throw InvalidArgument(fmt::format(
        "shard {}: a gradient of \"{}\", which this step is not about: leave its requires_grad as "
        "it is, and hand in an undefined one",
        shard_, model_.name(parameter)));
  }
  require_plain(value, model_.label(parameter), model_.row_sparse(parameter));
  const bool counts = !repeats();
  if (counts ? exchange_->finished(parameter) : audit_->has(parameter)) {
    throw Unsupported(fmt::format(
        "parameter \"{}\": a backward inside the backward (reentrant checkpointing) reached it",
        model_.name(parameter)));
  }
  if (model_.row_sparse(parameter)) {
    const IncomingRows rows(value, model_.tensor(parameter), model_.label(parameter));
    if (audit_ && audit_->records()) audit_->gradient(parameter, rows.entries());
    if (!counts) return;
    note(parameter, exchange_->write(parameter, rows.entries(), true));
    return;
  }
  const bool is_ours = is_sole_owner(value);
  const auto laid_out = laid_out_as(model_.tensor(parameter), value);
  const bool may_stay = is_ours || !laid_out.is_same(value);
  if (audit_ && audit_->records()) {
    audit_->gradient(parameter, laid_out.data_ptr(), laid_out.nbytes());
  }
  if (!counts) return;
  zero_copy_->arrived(parameter, laid_out, may_stay);
  note(parameter, exchange_->write(parameter, laid_out.data_ptr(), true, may_stay));
  if (coded_) coded_->wrote(static_cast<std::uint32_t>(parameter), scale_.factor);
}

void TrainerState::accumulated(std::size_t parameter) {
  const auto& tensor = model_.tensor(parameter);
  if (!tensor.grad().defined()) return;
  const auto value = tensor.grad();
  tensor.mutable_grad().reset();
  hooks_[parameter]->attach();
  gradient(parameter, value);
}

void TrainerState::backward_ended(bool) {}

void TrainerState::note(std::size_t parameter, double largest) {
  const bool is_per_replica = model_.is_per_replica(parameter);
  auto& so_far = is_per_replica ? largest_own_ : largest_;
  so_far = std::max(so_far, largest);
  if (std::isfinite(largest)) return;
  auto& mine = board_->mine();
  auto& facts = is_per_replica ? mine.own[replicas_->logical_worker_of(shard_)] : mine.all;
  facts.note_bad(shard_, static_cast<std::int64_t>(parameter));
}

}  // namespace tutti
