#pragma once

// What a Trainer's own classes do in a step, as parts of it. Those that are nothing else are parts
// themselves: StepNotes, Audit.
//
// Threads: one. Failure: StepPart's.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "run/numbers/loss_scaler.h"
#include "sync/step/gradient_source.h"
#include "sync/step/shard_board.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/update/moving_averages.h"
#include "sync/update/partitioned_update.h"
#include "torch/model/wrapped_model.h"
#include "torch/run/between_steps.h"
#include "torch/shards/keeper_board.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/shard_buffers.h"
#include "torch/shards/shard_states.h"
#include "torch/shards/shared_parameters.h"
#include "torch/shards/value_check.h"
#include "tutti/clip.h"

namespace tutti {

/// Parameters are what they were when the last step was over, where this one checks it.
class ValuesStepPart : public StepPart {
 public:
  /// Keeps references.
  ValuesStepPart(ValueCheck& values, StepExchange& exchange, const WrappedModel& model,
                 std::string trainer)
      : values_(values), exchange_(exchange), model_(model), trainer_(std::move(trainer)) {}
  void judge(StepFacts& step) override;

 private:
  ValueCheck& values_;
  StepExchange& exchange_;
  const WrappedModel& model_;
  std::string trainer_;
};

/// Of a pipeline's step: one stage hands in each parameter's gradient, and each buffer's value, of
/// all shards. Before the parts that add up what workers have handed in.
class KeepersStepPart : public StepPart {
 public:
  /// Keeps references.
  KeepersStepPart(KeeperBoard& keepers, const WrappedModel& model, std::string trainer)
      : keepers_(keepers), model_(model), trainer_(std::move(trainer)) {}
  void open(const StepFacts&) override { keepers_.open(); }
  void publish() override { keepers_.publish(); }
  void judge(StepFacts& step) override;

 private:
  KeeperBoard& keepers_;
  const WrappedModel& model_;
  std::string trainer_;
};

/// Parameters that all workers share, and the traffic of the gradients.
class UpdateStepPart : public StepPart {
 public:
  /// `sources` are those of the update. Keeps references.
  UpdateStepPart(PartitionedUpdate& update, std::vector<GradientSource*> sources)
      : update_(update), sources_(std::move(sources)) {}
  void judge(StepFacts& step) override {
    step.verdict = update_.judge(step.loss_scale, std::move(step.verdict));
  }
  void apply(const StepFacts& step) override { update_.apply(step.verdict, step.rate_factor); }
  void commit(StepFacts& step) override { update_.commit(step.touched, step.report); }
  void add_traffic(TrafficReport& report) const override { report = traffic_of(sources_); }

 private:
  PartitionedUpdate& update_;
  std::vector<GradientSource*> sources_;
};

/// What a dropped step means for those to come: the loss scale shrinks, or the drops in succession
/// are counted, and end the run when there are too many. Before ReplicasStepPart, which counts
/// those of logical workers.
class DropsStepPart : public StepPart {
 public:
  /// `most` in succession are too many. Keeps references.
  DropsStepPart(const LossScaleRule& rule, LossScaleState& scale, std::int64_t& in_a_row,
                std::int64_t most, bool logs)
      : rule_(rule), scale_(scale), in_a_row_(in_a_row), most_(most), logs_(logs) {}
  void end(StepFacts& step) override;

 private:
  void note_applied(StepFacts& step);
  void note_refused(StepFacts& step);

  const LossScaleRule& rule_;
  LossScaleState& scale_;
  std::int64_t& in_a_row_;
  std::int64_t most_;
  bool logs_;
};

/// Parameters that each logical worker has for itself. Outside of shards the first one's are shown.
class ReplicasStepPart : public StepPart {
 public:
  /// Drops of a logical worker's part end the run when there were `most` in succession. Keeps a
  /// reference.
  ReplicasStepPart(ReplicaParameters& replicas, const Clip& clip, std::int64_t most)
      : replicas_(replicas), clip_(clip), most_(most) {}
  void publish() override { replicas_.show(0); }
  void judge(StepFacts& step) override {
    replicas_.judge(step.number, step.loss_scale, clip_, step.verdict);
  }
  void apply(const StepFacts& step) override { replicas_.apply(step.rate_factor); }
  void commit(StepFacts& step) override;
  void drop() noexcept override { replicas_.show(0); }
  void end(StepFacts& step) override;
  void add_traffic(TrafficReport& report) const override;

 private:
  ReplicaParameters& replicas_;
  Clip clip_;
  std::int64_t most_;
};

/// Buffers of a step. Follows ReplicasStepPart, which knows the dropped logical workers.
class BuffersStepPart : public StepPart {
 public:
  /// `replicas` may be null.
  BuffersStepPart(ShardBuffers& buffers, const ShardBoard& board, const ReplicaParameters* replicas,
                  std::int64_t first_shard)
      : buffers_(buffers), board_(board), replicas_(replicas), first_shard_(first_shard) {}
  void open(const StepFacts&) override { buffers_.open(first_shard_); }
  void publish() override { buffers_.publish(); }
  void apply(const StepFacts& step) override;
  void drop() noexcept override { buffers_.restore(); }
  void resume() override { buffers_.send_all_from_first_rank(); }

 private:
  ShardBuffers& buffers_;
  const ShardBoard& board_;
  const ReplicaParameters* replicas_;
  std::int64_t first_shard_;
};

/// The model's tensors show the one copy, which the update has changed.
class ParametersStepPart : public StepPart {
 public:
  explicit ParametersStepPart(SharedParameters& parameters) : parameters_(parameters) {}
  void commit(StepFacts&) override { parameters_.written(); }
  void resume() override { parameters_.written(); }

 private:
  SharedParameters& parameters_;
};

class AveragesStepPart : public StepPart {
 public:
  /// Keeps references.
  AveragesStepPart(MovingAverages& averages, StepExchange& exchange, const BetweenSteps& between)
      : averages_(averages), exchange_(exchange), between_(between) {}
  void commit(StepFacts&) override { averages_.follow(); }
  void settle() override;

 private:
  MovingAverages& averages_;
  StepExchange& exchange_;
  const BetweenSteps& between_;
};

/// States of shards, but for shards of logical workers whose part was dropped.
class StatesStepPart : public StepPart {
 public:
  /// `replicas` may be null.
  StatesStepPart(ShardStates& states, const ReplicaParameters* replicas)
      : states_(states), replicas_(replicas) {}
  void commit(StepFacts& step) override;
  void drop() noexcept override { states_.drop(); }

 private:
  ShardStates& states_;
  const ReplicaParameters* replicas_;
};

}  // namespace tutti
