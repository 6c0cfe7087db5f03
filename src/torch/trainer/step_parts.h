#pragma once

// What a Trainer's own classes do in a step, as parts of it. Those that are nothing else are parts
// themselves: StepNotes, ValueCheck, Audit, KeeperBoard, ReplicaParameters, ShardBuffers,
// SharedParameters.
//
// Threads: one. Failure: StepPart's.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "run/data/data_order.h"
#include "run/data/epoch_watch.h"
#include "run/data/turns.h"
#include "run/numbers/loss_scaler.h"
#include "sync/step/gradient_source.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/update/moving_averages.h"
#include "sync/update/partitioned_update.h"
#include "torch/run/between_steps.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/shard_states.h"
#include "torch/shards/step_notes.h"

namespace tutti {

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
/// are counted, and end the run when there are too many. Before ReplicaParameters, which count
/// those of logical workers.
class DropsStepPart : public StepPart {
 public:
  /// `most` in succession are too many. Keeps references.
  DropsStepPart(const LossScale& rule, LossScaleState& scale, std::int64_t& in_a_row,
                std::int64_t most, bool logs)
      : rule_(rule), scale_(scale), in_a_row_(in_a_row), most_(most), logs_(logs) {}
  void end(StepFacts& step) override;

 private:
  void note_applied(StepFacts& step);
  void note_refused(StepFacts& step);

  const LossScale& rule_;
  LossScaleState& scale_;
  std::int64_t& in_a_row_;
  std::int64_t most_;
  bool logs_;
};

/// A step is over, applied or dropped: it is counted, and its samples and its turn are behind.
class ProgressStepPart : public StepPart {
 public:
  struct Progress {
    DataOrder& data;
    EpochWatch& epochs;
    Turns& turns;
    std::int64_t& steps;
  };
  /// Keeps references.
  ProgressStepPart(const StepNotes& notes, const Progress& progress, std::int64_t shards)
      : notes_(notes), progress_(progress), shards_(shards) {}
  void end(StepFacts& step) override;

 private:
  const StepNotes& notes_;
  Progress progress_;
  std::int64_t shards_;
};

/// Outside of shards torch's generator stands where no shard's does. After ProgressStepPart, by
/// whose count it is seeded.
class GeneratorStepPart : public StepPart {
 public:
  explicit GeneratorStepPart(std::function<void()> seed) : seed_(std::move(seed)) {}
  void publish() override { seed_(); }
  void drop() noexcept override { seed_(); }
  void end(StepFacts&) override { seed_(); }
  void resume() override { seed_(); }

 private:
  std::function<void()> seed_;
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
