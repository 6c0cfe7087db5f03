#include "tutti/averaged_parallel.h"

#include <fmt/format.h>

#include "comm/group_state.h"
#include "torch/averaged/parallel_averaging.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/settings.h"
#include "torch/model/weighted_mean.h"
#include "torch/split/noted_rows.h"
#include "torch/split/split_layers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

void require_options(const AveragingPolicyPointer& policy, const AveragedParallelOptions& options) {
  if (policy == nullptr) throw InvalidArgument("AveragedParallel without an averaging policy");
  validate(*policy);
  if (options.fusion < 1) throw InvalidArgument("fusion must be at least 1");
  require_first_step(options.first_step);
  require_deadline(options.deadline);
}

/// What is sent at the start changes parameters, which must not be a Trainer's.
void require_free(const WrappedModel& model, const AveragingPolicy& policy) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto sink = ParameterHooks::sink_of(model.tensor(p));
    if (sink == nullptr || !sink->owns_values()) continue;
    throw InvalidArgument(fmt::format("averaging {}: {} is a Trainer's already; end that one first",
                                      policy.name(), model.label(p)));
  }
}

/// `group_of` is called once all options are checked: until then no worker waits for this one.
std::unique_ptr<ParallelAveraging> start(const std::function<Group()>& group_of, WrappedModel model,
                                         const SplitLayers& layers, AveragingPolicyPointer policy,
                                         const AveragedParallelOptions& options) {
  require_options(policy, options);
  if (!layers.parameters.empty()) {
    throw InvalidArgument(
        fmt::format("averaging {}: \"{}\" is split over the workers, whose steps have to be one",
                    policy->name(), layers.parameters.front().first));
  }
  require_free(model, *policy);
  const Group group = group_of();
  require_whole(model, group, "AveragedParallel");
  return std::make_unique<ParallelAveraging>(group, std::move(model), std::move(policy), options);
}

WrappedModel wrapped(torch::nn::Module& module, const SplitLayers& layers,
                     const AveragedParallelOptions& options) {
  return {module,
          {.excluded = options.per_replica, .split = layers.tensors, .model = options.name},
          "AveragedParallel"};
}

}  // namespace

AveragedParallel::AveragedParallel(const Job& job, torch::nn::Module& module,
                                   AveragingPolicyPointer policy,
                                   const AveragedParallelOptions& options) {
  const auto layers = find_split_layers(module, all_ranks(job));
  state_ = start([&] { return Group(job, options.name, kOneLane); },
                 wrapped(module, layers, options), layers, std::move(policy), options);
  name_layers(module);
}

AveragedParallel::AveragedParallel(const Group& group, torch::nn::Module& module,
                                   AveragingPolicyPointer policy,
                                   const AveragedParallelOptions& options) {
  const auto layers = find_split_layers(module, group.state()->ranks());
  state_ = start([&] { return group; }, wrapped(module, layers, options), layers, std::move(policy),
                 options);
  name_layers(module);
}

AveragedParallel::AveragedParallel(const Group& group,
                                   std::vector<std::pair<std::string, torch::Tensor>> parameters,
                                   AveragingPolicyPointer policy,
                                   const AveragedParallelOptions& options)
    : state_(start([&] { return group; },
                   WrappedModel(std::move(parameters),
                                {.excluded = options.per_replica, .model = options.name}),
                   {}, std::move(policy), options)) {}

AveragedParallel::~AveragedParallel() = default;
AveragedParallel::AveragedParallel(AveragedParallel&&) noexcept = default;

ParallelAveraging& AveragedParallel::state() const {
  if (!state_) throw InvalidArgument("this AveragedParallel was moved from");
  return *state_;
}

void AveragedParallel::average_parameters(std::optional<std::int64_t> step) {
  state().average_parameters(step);
}

void AveragedParallel::sync_buffers() { state().sync_buffers(); }

double AveragedParallel::mean(double value, double weight) const {
  return mean(torch::tensor(value, torch::kFloat64), weight).item<double>();
}

torch::Tensor AveragedParallel::mean(const torch::Tensor& value, double weight) const {
  return weighted_mean(group(), value, weight, state().deadline(),
                       [](const std::function<void()>& calls) { calls(); });
}

std::vector<std::string> AveragedParallel::touched() const { return state().touched(); }
const StepReport& AveragedParallel::report() const { return state().report(); }
TrafficReport AveragedParallel::traffic() const { return state().traffic(); }
std::size_t AveragedParallel::bytes_held() const { return state().bytes_held(); }
const Group& AveragedParallel::group() const { return state().group(); }

}  // namespace tutti
