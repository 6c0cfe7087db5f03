// What a Trainer does between steps: changes by hand, checkpoints, and what a run's state consists
// of.

#include <fmt/format.h>

#include "run/state/progress_parts.h"
#include "torch/run/model_parts.h"
#include "torch/trainer/trainer_edit.h"
#include "torch/trainer/trainer_parts.h"
#include "torch/trainer/trainer_state.h"
#include "tutti/error.h"

namespace tutti {

TrainedModel TrainerState::trained() {
  return {options_,     module_,   model_,          *exchange_,     *shared_,
          *parameters_, *buffers_, replicas_.get(), averages_.get()};
}

/// The run's state, once, behind what the program keeps. The order is that of state_sha256().
void TrainerState::list_parts() {
  auto& state = checkpoints_->state();
  const auto& plan = exchange_->plan();
  state.add<ParametersPart>(plan, *shared_, *update_, state_names_);
  if (coded_) state.add<ResidualsPart>(plan, *coded_);
  state.add<ReplicasPart>(replicas_.get());
  state.add<BuffersPart>(model_, *buffers_);
  state.add<AveragesPart>(plan, *shared_, averages_.get());
  state.add<ShardStatesPart>(states_, options_.shards, mine_);
  state.add<OptimizerNumbersPart>(*torch_optimizers_);
  state.add<DataOrderPart>(data_);
  state.add<LossScalePart>(scale_);
  state.add<TurnsPart>(turns_);
  state.add<StepsPart>(steps_, dropped_in_a_row_);
}

void TrainerState::edit(const std::function<void()>& change) {
  std::exception_ptr error;
  exchange_->run_collectives([&] {
    error = edit_by_hand(trained(), between_, change);
    expect_values();
  });
  if (error) std::rethrow_exception(error);
}

void TrainerState::keep(const std::string& name, KeptValues::Variable variable) {
  between_.require("keep()");
  if (exchange_->is_open()) {
    throw InvalidArgument(fmt::format("keep(\"{}\") inside a step", name));
  }
  checkpoints_->keep(name, variable);
}

void TrainerState::save(const std::string& directory, const SaveOptions& options) {
  std::exception_ptr error;
  exchange_->run_collectives([&] {
    error = checkpoints_->save(directory, options, steps_, [&] { trained().require_untouched(); });
  });
  if (error) std::rethrow_exception(error);
}

std::optional<std::int64_t> TrainerState::load(const std::string& directory,
                                               const LoadOptions& options) {
  std::optional<std::int64_t> step;
  exchange_->run_collectives([&] {
    if (!checkpoints_->load(directory, options, [&] { model_.require_all_in_place(); })) return;
    if (audit_) audit_->start_anew();
    note_samples();
    resumes_ = true;
    buffers_->send_all_from_first_rank();
    parameters_->written();
    expect_values();
    seed_between_steps();
    step = steps_;
  });
  return step;
}

}  // namespace tutti
