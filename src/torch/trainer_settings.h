#pragma once

// The options of a Trainer in the words of the layers below, resolved once.
//
// Pure functions. Failure: BadInput.

#include "kernels/update.h"
#include "sync/step_exchange.h"
#include "torch/data_parallel_settings.h"
#include "torch/wrapped_model.h"
#include "tutti/trainer.h"

namespace tutti {

/// Name of the metric that Shard::loss() records.
inline constexpr std::string_view kLossName = "loss";

void require_options(const TrainerOptions& options);
ExchangeOptions exchange_options_of(const TrainerOptions& options);
/// What all workers have to agree on, as (name, value).
Settings settings_of(const TrainerOptions& options, const Optimizer& optimizer,
                     const WrappedModel& model);

UpdateRule update_rule_of(const Optimizer::Rule& rule);
/// Tensors of state that the rule keeps per parameter.
int states_of(const UpdateRule& rule);

}  // namespace tutti
