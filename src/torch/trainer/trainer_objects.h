#pragma once

// A Run: what a Trainer has for one membership of its group, made from its World in the order in
// which the objects need each other, and the lists of what takes part in a step and of what a
// checkpoint holds. A new feature is made here, and is a line in one of the lists.
//
// Threads: one. Failure: what making each of them throws; collective.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/data/data_order.h"
#include "run/data/epoch_watch.h"
#include "run/data/turns.h"
#include "run/numbers/loss_scaler.h"
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
#include "torch/classes/trained_classifiers.h"
#include "torch/device/device_arithmetic.h"
#include "torch/model/host_copies.h"
#include "torch/model/wrapped_model.h"
#include "torch/optim/tile_optimizers.h"
#include "torch/pipeline/pipeline_runner.h"
#include "torch/run/between_steps.h"
#include "torch/shards/audit.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/shard_buffers.h"
#include "torch/shards/shard_runner.h"
#include "torch/shards/shard_states.h"
#include "torch/shards/shared_parameters.h"
#include "torch/shards/step_notes.h"
#include "torch/shards/value_check.h"
#include "torch/trainer/folded_gradients.h"
#include "torch/trainer/trainer_checkpoints.h"
#include "torch/trainer/trainer_evaluation.h"
#include "torch/trainer/trainer_world.h"
#include "tutti/trainer.h"

namespace tutti {

struct TrainerObjects {
  /// Keeps a reference.
  explicit TrainerObjects(TrainerWorld& own_world);
  TrainerObjects(const TrainerObjects&) = delete;
  TrainerObjects& operator=(const TrainerObjects&) = delete;

  /// The step that comes, counted from 1.
  std::int64_t step() const { return steps + 1; }
  TrainedModel trained();
  /// Logs what this worker trains, and warns of what was asked for in vain.
  void log_start() const;
  /// Rank 0 has restored what workers, or hosts, have each for themselves. Collective.
  void spread_from_first_rank();
  /// Between steps torch's generator stands where no shard's does.
  void seed_between_steps() const;

  TrainerWorld& world;
  const Group& group;
  TrainerOptions& options;
  torch::nn::Module& module;
  WrappedModel model;
  BetweenSteps between;
  ShardRange mine;
  std::unique_ptr<DeterministicAlgorithms> deterministic;  ///< null where the model is on the CPU
  std::unique_ptr<HostCopies> host;                        ///< likewise
  std::unique_ptr<StepExchange> exchange;
  std::unique_ptr<ShardBoard> board;
  SharedModel* shared;                                ///< the World's
  SharedParameters* parameters;                       ///< the World's
  std::vector<std::vector<std::string>> state_names;  ///< of each parameter's optimizer
  std::unique_ptr<TileOptimizers> torch_optimizers;
  std::unique_ptr<CodedGradients> coded;  ///< null without a codec
  std::unique_ptr<DenseGradients> dense;
  std::unique_ptr<RowGradients> rows;
  std::vector<GradientSource*> sources;  ///< these; traffic is reported in this order
  std::unique_ptr<PartitionedUpdate> update;
  std::unique_ptr<ReplicaParameters> replicas;  ///< null without
  std::unique_ptr<ValueCheck> values;
  std::unique_ptr<TrainedClassifiers> classifiers;  ///< null without
  std::unique_ptr<Audit> audit;                     ///< null without
  std::unique_ptr<KeeperBoard> keepers;             ///< null without a pipeline
  std::unique_ptr<ShardBuffers> buffers;
  std::unique_ptr<MovingAverages> averages;  ///< null without
  std::unique_ptr<FoldedGradients> folded;
  RunState state;  ///< all that a checkpoint holds
  std::unique_ptr<TrainerCheckpoints> checkpoints;
  std::unique_ptr<TrainerEvaluation> evaluation;
  ShardStates states;
  std::unique_ptr<StepNotes> notes;
  StepParts step_parts;
  std::shared_ptr<ShardRunner> runner;
  std::unique_ptr<PipelineRunner> pipeline;  ///< null without
  ModelMemory memory;

  DataOrder data;
  LossScaleState scale;
  EpochWatch epochs;
  Turns turns;             ///< of steps that were about one of several models
  std::int64_t steps = 0;  ///< over, applied or dropped
  std::int64_t dropped_in_a_row = 0;
  bool in_halves = false;  ///< the open step, or the last one
  /// Throws Unsupported where this host lacks gradients of others.
  void require_all_in_halves() const;

 private:
  void leave_audits_out(const std::string& why);
  void list_run_parts();
  void list_step_parts();
};

}  // namespace tutti
