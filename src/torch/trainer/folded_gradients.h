#pragma once

// What a program sees of the gradients of all shards between the halves of a step, of whatever kind
// they are.
//
// Threads: one. Between the verdict and the end of the step, by any worker alone.

#include <torch/torch.h>

#include <cstddef>

#include "sync/rows/row_gradients.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/update/partitioned_update.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/replica_parameters.h"

namespace tutti {

class FoldedGradients {
 public:
  /// `replicas` is null where no parameter is per replica. Keeps references.
  FoldedGradients(const WrappedModel& model, const StepExchange& exchange, RowGradients& rows,
                  PartitionedUpdate& update, ReplicaParameters* replicas)
      : model_(model), exchange_(exchange), rows_(rows), update_(update), replicas_(replicas) {}

  /// On the model's device. Undefined if no shard touched the parameter.
  torch::Tensor of(std::size_t parameter, const Verdict& verdict);
  /// Over all parameters, before clipping.
  double norm(const Verdict& verdict);

 private:
  torch::Tensor on_host(std::size_t parameter, const Verdict& verdict);

  const WrappedModel& model_;
  const StepExchange& exchange_;
  RowGradients& rows_;
  PartitionedUpdate& update_;
  ReplicaParameters* replicas_;
};

}  // namespace tutti
