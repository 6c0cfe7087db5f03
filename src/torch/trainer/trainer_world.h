#pragma once

// What a Trainer has as long as it lives, whoever its members are: the processes and links of its
// group, the module and the options that the program has given, parameters and optimizer state in
// memory that workers share, the program's own values, the step log. TrainerObjects are what one
// membership has beside it; they can be made anew from it between any two steps
// (TrainerState::rebuild()).
//
// Threads: one. Failure: as each function says.

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <vector>

#include "run/log/step_curves.h"
#include "run/log/step_log.h"
#include "sync/plan/plan.h"
#include "sync/update/shared_model.h"
#include "torch/model/wrapped_model.h"
#include "torch/run/kept_values.h"
#include "torch/shards/shared_parameters.h"
#include "tutti/trainer.h"

namespace tutti {

struct TrainerWorld {
  /// Pins torch's threads.
  TrainerWorld(const Group& own_group, torch::nn::Module& own_module, Optimizer own_optimizer,
               TrainerOptions own_options);
  TrainerWorld(const TrainerWorld&) = delete;
  TrainerWorld& operator=(const TrainerWorld&) = delete;

  /// Parameters move into shared memory, and get the optimizer's state beside them: `initial[p]`
  /// are the values that parameter p's begins with. Nothing where they are there already.
  /// OutOfMemory beyond TrainerOptions::memory_limit. Collective.
  void move_in(const WrappedModel& model, const Plan& own_plan,
               const std::vector<std::vector<double>>& initial);

  Group group;
  torch::nn::Module& module;
  Optimizer optimizer;
  TrainerOptions options;
  KeptValues kept;
  std::unique_ptr<StepLog> log;        ///< rank 0's, from the first step on
  std::unique_ptr<StepCurves> curves;  ///< likewise
  std::optional<File> curves_lock;     ///< rank 0's
  std::optional<Plan> plan;            ///< of `shared`
  std::unique_ptr<SharedModel> shared;
  std::unique_ptr<SharedParameters> parameters;

 private:
  void require_memory() const;
  void fill_initial_states(const std::vector<std::vector<double>>& initial);
};

}  // namespace tutti
