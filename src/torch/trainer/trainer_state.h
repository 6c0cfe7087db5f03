#pragma once

// The state behind a Trainer: runs this worker's shards as leaves of the step exchange, and turns
// the folded gradients of all shards into new parameters.
//
//   accumulate: shards … → publish │ wait for all │ judge
//   apply:      update own tiles, buffers, metrics │ wait for all
//
// Threads: one.

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/data_order.h"
#include "run/loss_scaler.h"
#include "run/turns.h"
#include "sync/coded/coded_gradients.h"
#include "sync/plan/assignment.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/dense_gradients.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/update/moving_averages.h"
#include "sync/update/partitioned_update.h"
#include "sync/update/shared_model.h"
#include "torch/model/wrapped_model.h"
#include "torch/optim/tile_optimizers.h"
#include "torch/run/between_steps.h"
#include "torch/trainer/active_parameters.h"
#include "torch/trainer/audit.h"
#include "torch/trainer/replica_parameters.h"
#include "torch/trainer/shard_buffers.h"
#include "torch/trainer/shard_runner.h"
#include "torch/trainer/shard_states.h"
#include "torch/trainer/shared_parameters.h"
#include "torch/trainer/step_notes.h"
#include "torch/trainer/trainer_checkpoints.h"
#include "torch/trainer/trainer_evaluation.h"
#include "torch/trainer/value_check.h"
#include "tutti/trainer.h"

namespace tutti {

class TrainerState {
 public:
  TrainerState(const Group& group, torch::nn::Module& module, const Optimizer& optimizer,
               const TrainerOptions& options);

  /// `active`: the only one of several models that the step is about.
  void accumulate(const Trainer::Compute& compute, bool in_halves,
                  const torch::nn::Module* active = nullptr);
  StepResult apply();
  torch::Tensor folded_gradient(const std::string& name);
  double gradient_norm();

  // Between steps.
  void edit(const std::function<void()>& change);
  void keep(const std::string& name, KeptValues::Variable variable);
  void save(const std::string& directory, const SaveOptions& options);
  std::optional<std::int64_t> load(const std::string& directory, const LoadOptions& options);
  TrainerEvaluation& evaluation() { return *evaluation_; }
  std::string state_sha256() const { return checkpoints_->sha256(model_.parameters().size()); }

  std::int64_t step() const { return steps_ + 1; }
  TrafficReport traffic() const;
  std::int64_t steps() const { return steps_; }
  std::int64_t epoch();
  const ShardRange& shards() const { return mine_; }
  const Group& group() const { return group_; }

 private:
  /// So often epoch() may be asked for while it cannot move on, before that is logged.
  static constexpr int kPatience = 100;
  TrainedModel trained();
  void list_parts();
  void list_step_parts();
  void fill_initial_states(const std::vector<std::vector<double>>& initial);
  void look_at_turn();
  void expect_values();
  torch::Tensor folded_gradient(std::size_t parameter);
  void require_no_gradients() const;
  void seed_between_steps() const;
  std::vector<GradientSource*> sources() const;
  StepResult result_of();
  std::string take_note(const StepResult& result);
  /// A loop over epoch() is not in vain.
  void note_samples() {
    epoch_asked_after_ = steps_;
    asked_in_vain_ = 0;
  }
  void drop(const std::string& why) noexcept;

  Group group_;
  TrainerOptions options_;
  torch::nn::Module& module_;
  WrappedModel model_;
  BetweenSteps between_;
  ShardRange mine_;
  std::unique_ptr<StepExchange> exchange_;
  std::unique_ptr<ShardBoard> board_;
  std::unique_ptr<SharedModel> shared_;
  std::unique_ptr<SharedParameters> parameters_;
  std::vector<std::vector<std::string>> state_names_;  ///< of each parameter's optimizer
  std::unique_ptr<TileOptimizers> torch_optimizers_;
  std::unique_ptr<CodedGradients> coded_;  ///< null without a codec
  std::unique_ptr<DenseGradients> dense_;
  std::unique_ptr<RowGradients> rows_;
  std::unique_ptr<PartitionedUpdate> update_;
  std::unique_ptr<ReplicaParameters> replicas_;  ///< null without
  std::unique_ptr<ValueCheck> values_;
  std::unique_ptr<Audit> audit_;  ///< null without
  std::unique_ptr<ShardBuffers> buffers_;
  std::unique_ptr<MovingAverages> averages_;  ///< null without
  std::unique_ptr<TrainerCheckpoints> checkpoints_;
  std::unique_ptr<TrainerEvaluation> evaluation_;
  ShardStates states_;
  std::unique_ptr<StepNotes> notes_;
  std::vector<std::unique_ptr<StepPart>> own_step_parts_;
  StepParts step_parts_;
  std::shared_ptr<ShardRunner> runner_;
  ModelMemory memory_;

  DataOrder data_;
  LossScaleRule scale_rule_;
  LossScaleState scale_;
  std::vector<std::uint8_t> active_set_;  ///< which parameters that are, unless all
  Turns turns_;                           ///< of steps that were about one of several models
  bool resumes_ = false;                  ///< with the next step, from a checkpoint
  std::int64_t steps_ = 0;                ///< over, applied or dropped
  std::int64_t dropped_in_a_row_ = 0;
  std::int64_t epoch_asked_after_ = 0;  ///< so many steps, last; or samples were
  int asked_in_vain_ = 0;               ///< after as many steps that asked for no samples
  bool said_no_samples_ = false;
  StepFacts facts_;  ///< of the current step, or the last one
};

}  // namespace tutti
