#pragma once

// What a Trainer trains and where it lies, for those who work on it between steps.

#include <torch/torch.h>

#include "sync/step/step_exchange.h"
#include "sync/update/moving_averages.h"
#include "sync/update/shared_model.h"
#include "torch/classes/trained_classifiers.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/replica_parameters.h"
#include "torch/shards/shard_buffers.h"
#include "torch/shards/shared_parameters.h"
#include "tutti/trainer.h"

namespace tutti {

/// References to a Trainer's own.
struct TrainedModel {
  const TrainerOptions& options;
  torch::nn::Module& module;
  const WrappedModel& model;
  StepExchange& exchange;
  const SharedModel& shared;
  SharedParameters& parameters;
  ShardBuffers& buffers;
  ReplicaParameters* replicas;      ///< null without
  MovingAverages* averages;         ///< null without
  TrainedClassifiers* classifiers;  ///< null without

  /// Finds, before a step, tensors that were written or moved since the last one.
  void require_untouched() const {
    model.require_all_in_place();
    parameters.require_untouched();
    buffers.require_untouched();
  }
  /// InvalidArgument where there is no parameter of that name.
  std::size_t parameter_of(const std::string& name) const;
};

}  // namespace tutti
