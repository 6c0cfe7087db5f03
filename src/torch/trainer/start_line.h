#pragma once

// What a Trainer logs when it starts: a short line, one with all that is used for who debugs, and
// warnings of what the program has asked for in vain.
//
// Threads: one. Failure: none.

#include <cstddef>
#include <string>

#include "sync/coded/coded_gradients.h"
#include "torch/model/wrapped_model.h"
#include "torch/shards/replica_parameters.h"
#include "tutti/group.h"
#include "tutti/optimizer.h"
#include "tutti/trainer.h"

namespace tutti {

/// Warns of other tensors in the memory of a parameter, before the parameters move.
void warn_of_aliases(const WrappedModel& model, const std::string& name);

struct StartLine {
  const WrappedModel& model;
  const TrainerOptions& options;
  const Group& group;
  const Optimizer& optimizer;
  std::string settings;               ///< what belongs to the run
  const CodedGradients* coded;        ///< null without a codec
  std::size_t row_sparse;             ///< parameters
  const ReplicaParameters* replicas;  ///< null without
  std::size_t node_bytes;             ///< of a sum of gradients
  std::size_t host_bytes;             ///< of parameters and optimizer state
  int threads;                        ///< of the host that update them, of each worker
};

/// Rank 0 logs.
void log_start(const StartLine& start);

}  // namespace tutti
