#include "tutti/data_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>

#include "comm/group_state.h"
#include "torch/data_parallel/data_parallel_settings.h"
#include "torch/data_parallel/data_parallel_state.h"
#include "torch/data_parallel/parallel_averaging.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/loss_weight.h"
#include "torch/split/noted_rows.h"
#include "torch/split/split_layers.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {
namespace {

ParameterRoles roles_of(const DataParallelOptions& options, const SplitLayers& layers = {}) {
  return {.excluded = options.per_replica,
          .split = layers.tensors,
          .row_sparse = options.row_sparse,
          .per_replica = {},
          .placement = options.placement,
          .model = options.name};
}

/// Until they are ended, whoever has the parameters would find them changed by what is sent at the
/// start, and one that is refused has to leave them usable.
void require_free(const WrappedModel& model, const SplitLayers& layers,
                  const DataParallelOptions& options) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto& tensor = model.tensor(p);
    if (!options.averaging) {
      ParameterHooks::require_free(tensor, model.label(p));
      continue;
    }
    const auto sink = ParameterHooks::sink_of(tensor);
    if (sink == nullptr || !sink->owns_values()) continue;
    throw InvalidArgument(fmt::format("averaging {}: {} is a Trainer's already; end that one first",
                                      options.averaging->name(), model.label(p)));
  }
  for (const auto& [name, tensor] : layers.parameters) {
    ParameterHooks::require_free(tensor,
                                 fmt::format("parameter \"{}\" of \"{}\"", name, options.name));
  }
}

/// A model that is given by its tensors' names does not show whose rows they are.
void require_whole(const WrappedModel& model, const Group& group) {
  if (group.size() == 1) return;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    const auto layer = NotedRows::layer_of(model.tensor(p), group.state()->ranks());
    if (layer.empty()) continue;
    throw InvalidArgument(
        fmt::format("{} is this worker's rows of a {} that is split over these workers: named "
                    "parameters are made the same on all; make the DataParallel of the module that "
                    "has the layer",
                    model.label(p), layer));
  }
}

}  // namespace

/// `group_of` is called once all options are checked for `workers` workers: until then no worker
/// waits for this one.
void DataParallel::start(const std::function<Group()>& group_of, int workers, WrappedModel model,
                         SplitLayers layers, const DataParallelOptions& options) {
  require_options(options);
  deadline_ = options.deadline;
  require_owners(model, workers);
  if (options.averaging && !layers.parameters.empty()) {
    throw InvalidArgument(
        fmt::format("averaging {}: \"{}\" is split over the workers, whose steps have to be one",
                    options.averaging->name(), layers.parameters.front().first));
  }
  require_free(model, layers, options);
  const Group group = group_of();
  require_whole(model, group);
  if (options.averaging) {
    averaging_ = std::make_unique<ParallelAveraging>(group, std::move(model), options);
    return;
  }
  state_ = std::make_shared<DataParallelState>(group, std::move(model), std::move(layers), options);
  state_->attach();
}

DataParallel::DataParallel(const Job& job, torch::nn::Module& module,
                           const DataParallelOptions& options) {
  std::vector<int> ranks(static_cast<std::size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto layers = find_split_layers(module, ranks);
  auto roles = roles_of(options, layers);
  start([&] { return Group(job, options.name, kOneLane); }, job.size(), WrappedModel(module, roles),
        std::move(layers), options);
  name_layers(module);
}

DataParallel::DataParallel(const Group& group, torch::nn::Module& module,
                           const DataParallelOptions& options) {
  auto layers = find_split_layers(module, group.state()->ranks());
  auto roles = roles_of(options, layers);
  start([&] { return group; }, group.size(), WrappedModel(module, roles), std::move(layers),
        options);
  name_layers(module);
}

DataParallel::DataParallel(const Group& group,
                           std::vector<std::pair<std::string, torch::Tensor>> parameters,
                           const DataParallelOptions& options) {
  start([&] { return group; }, group.size(), WrappedModel(std::move(parameters), roles_of(options)),
        {}, options);
}

DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;

void DataParallel::require_here() const {
  if (!state_ && !averaging_) throw InvalidArgument("this DataParallel was moved from");
}

DataParallelState& DataParallel::steps(const char* what) const {
  require_here();
  if (state_) return *state_;
  throw InvalidArgument(
      fmt::format("{} with an averaging policy: each worker's steps are its own; call "
                  "average_parameters() at the end of each",
                  what));
}

void DataParallel::next_weight(double weight) { steps("next_weight()").next_weight(weight); }

Accumulation DataParallel::accumulate(const AccumulateOptions& options) {
  steps("accumulate()").open_scope(options);
  return {state_, options};
}

void DataParallel::synchronize(std::optional<double> weight) {
  steps("synchronize()").synchronize(weight);
}

std::int64_t DataParallel::join(const std::function<void()>& update) {
  return steps("join()").join(update);
}

bool DataParallel::stopped() const { return state_ && state_->stopped(); }

void DataParallel::fail(const std::string& why) {
  if (state_) state_->fail(why);
}

void DataParallel::sync_buffers() {
  require_here();
  if (state_) return state_->sync_buffers();
  averaging_->sync_buffers();
}

double DataParallel::mean(double value, double weight) const {
  return mean(torch::tensor(value, torch::kFloat64), weight).item<double>();
}

torch::Tensor DataParallel::mean(const torch::Tensor& value, double weight) const {
  require_here();
  if (state_ && state_->scope() != 0) {
    throw InvalidArgument("mean() inside an accumulation scope: call it before or after");
  }
  require_weight(weight);
  if (!value.defined() || !value.is_floating_point()) {
    throw InvalidArgument("mean() needs a tensor of floating-point numbers");
  }
  const torch::NoGradGuard no_grad;
  // Behind the elements, their weight.
  auto sums = torch::zeros({value.numel() + 1}, torch::kFloat64);
  auto elements = sums.narrow(0, 0, value.numel());
  if (weight > 0) elements.copy_(value.detach().reshape(-1));
  if (state_) state_->use();
  if (group().size() > 1) {
    elements.mul_(weight);
    sums[value.numel()] = weight;
    // Compared on all workers.
    const auto label = fmt::format("mean() of {} [{}]", c10::toString(value.scalar_type()),
                                   fmt::join(value.sizes(), ", "));
    const CollectiveOptions options{.label = label, .deadline = deadline_};
    const auto add = [&] { all_reduce(group(), sums, Reduction::sum, options); };
    state_ ? state_->collectively(add) : add();
    elements.div_(sums[value.numel()]);
  } else if (weight == 0) {
    elements.fill_(std::nan(""));
  }
  return elements.reshape(value.sizes()).to(value.scalar_type());
}

void DataParallel::average_parameters(std::optional<std::int64_t> step) {
  require_here();
  if (!averaging_)
    throw InvalidArgument(
        "average_parameters() without an averaging policy: DataParallelOptions::averaging is one");
  averaging_->average_parameters(step);
}

void DataParallel::broadcast_placed() { steps("broadcast_placed()").broadcast_placed(); }

std::vector<std::string> DataParallel::touched() const {
  require_here();
  return state_ ? state_->touched() : averaging_->touched();
}

const StepReport& DataParallel::report() const {
  require_here();
  return state_ ? state_->report() : averaging_->report();
}

TrafficReport DataParallel::traffic() const {
  require_here();
  return state_ ? state_->traffic() : averaging_->traffic();
}

std::size_t DataParallel::bytes_held() const {
  require_here();
  return state_ ? state_->exchange().nodes().bytes_held() : averaging_->bytes_held();
}

const Group& DataParallel::group() const {
  require_here();
  return state_ ? state_->group() : averaging_->group();
}

Accumulation::Accumulation(std::shared_ptr<DataParallelState> state,
                           const AccumulateOptions& options)
    : state_(std::move(state)),
      scope_(state_->scope()),
      options_(options),
      exceptions_at_start_(std::uncaught_exceptions()) {}

Accumulation::Accumulation(Accumulation&& other) noexcept = default;

Accumulation::~Accumulation() noexcept(false) {
  if (!is_open()) return;
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    state_->leave_scope("an exception left its accumulation scope", nullptr);
    return;
  }
  const auto error = std::make_exception_ptr(
      InvalidArgument("an accumulation scope was left without finish(): its gradients are lost"));
  state_->leave_scope("it left an accumulation scope without finish()", error);
  std::rethrow_exception(error);
}

bool Accumulation::is_open() const { return state_ && state_->scope() == scope_; }

void Accumulation::require_open(const char* what) const {
  if (is_open()) return;
  const auto error = std::make_exception_ptr(InvalidArgument(
      std::string(what) +
      " after the accumulation scope has ended, or its step was dropped (by fail(), "
      "or by an exception)"));
  if (state_) state_->told_of_dropped(scope_, error);
  std::rethrow_exception(error);
}

void Accumulation::run(double weight, const std::function<torch::Tensor()>& compute) {
  require_open("micro_batch()");
  state_->run_leaf(weight, options_.seed, compute);
}

void Accumulation::finish() {
  require_open("finish()");
  state_->finish_scope();
}

}  // namespace tutti
