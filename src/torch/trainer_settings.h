#pragma once

// The options of a Trainer in the words of the layers below, resolved once.
//
// Pure functions. Failure: BadInput.

#include "kernels/update.h"
#include "run/facts.h"
#include "run/loss_scaler.h"
#include "sync/assignment.h"
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

/// What a checkpoint and the run that goes on from it must have in common: of the settings, those
/// that decide bits, and the model.
Facts facts_of(const TrainerOptions& options, const Optimizer& optimizer,
               const WrappedModel& model);

/// What the options say of that buffer.
BufferRule buffer_rule_of(const TrainerOptions& options, const std::string& name,
                          const torch::Tensor& buffer);
/// By rank.
std::vector<ShardRange> assignment_of(const TrainerOptions& options, int workers);
LossScaleRule loss_scale_rule_of(const LossScale& scale);
UpdateRule update_rule_of(const Optimizer::Rule& rule);
/// Tensors of state that the rule keeps per parameter.
int states_of(const UpdateRule& rule);
/// Of the k-th: torch's name for it.
std::string_view state_name(const UpdateRule& rule, int k);

}  // namespace tutti
