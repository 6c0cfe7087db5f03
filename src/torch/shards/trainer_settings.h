#pragma once

// The options of a Trainer in the words of the layers below, resolved once.
//
// Pure functions. Failure: InvalidArgument.

#include "kernels/rules/registry.h"
#include "run/files/run_fingerprint.h"
#include "sync/coded/coded_gradients.h"
#include "sync/step/step_exchange.h"
#include "sync/update/shared_model.h"
#include "torch/model/settings.h"
#include "torch/model/wrapped_model.h"
#include "tutti/trainer.h"

namespace tutti {

void require_options(const TrainerOptions& options);
/// Whether logical workers may have parameters of their own, and which those are.
bool has_per_replica(const TrainerOptions& options);
ParameterRoles roles_of(const TrainerOptions& options);
/// Unsupported where the model is on a device and what is asked for is offered on the CPU alone.
void require_offered_there(const TrainerOptions& options, const WrappedModel& model);
/// Throws InvalidArgument where per-replica parameters, owners and other options contradict each
/// other.
void require_per_replica(const TrainerOptions& options, const WrappedModel& model);
/// Throws where the optimizer cannot update parameters that are row-sparse, per-replica or owned,
/// or the gradients of a codec with momentum correction.
void require_rules(const TrainerOptions& options, const Optimizer& optimizer,
                   const WrappedModel& model);
ExchangeOptions exchange_options_of(const TrainerOptions& options, const WrappedModel& model,
                                    int workers);
/// The edges between logical workers, as far as anything of theirs is kept apart: first shards,
/// ascending.
std::vector<std::int64_t> node_boundaries_of(const TrainerOptions& options);
/// The options of the codec. `shared` has the parameters' values, and must outlive the result.
CodingOptions coding_options_of(const TrainerOptions& options, const Plan& plan,
                                const SharedModel& shared);
/// Settings that must be equal on all workers, as (name, value).
Settings settings_of(const TrainerOptions& options, const Optimizer& optimizer,
                     const WrappedModel& model);

/// Text for a log: ", name value, …", with one entry for all parameters, or buffers, of a rule.
std::string summary_of(const Settings& settings);

/// Facts that a checkpoint and a run that resumes from it must share: the settings that decide
/// bits, and the model.
RunFingerprint facts_of(const TrainerOptions& options, const Optimizer& optimizer,
                        const WrappedModel& model);

/// The options' rule for that buffer.
BufferRule buffer_rule_of(const TrainerOptions& options, const std::string& name,
                          const torch::Tensor& buffer);
/// Which gradients stay on this worker's host: those of logical workers that no other one carries,
/// where what becomes of them is sent instead; those of per-replica parameters only while
/// `in_halves`, to which it keeps a reference, is false. Empty on one host.
StaysHere stays_of(const TrainerOptions& options, const GroupState& group, const bool& in_halves);
/// The tensors of state that the rule, or the optimizer of torch, keeps per parameter.
std::vector<RuleState> states_of(const Optimizer::Rule& rule);

}  // namespace tutti
