#include "tutti/data_parallel.h"

#include <fmt/format.h>

#include "comm/group_state.h"
#include "torch/data_parallel/data_parallel_settings.h"
#include "torch/data_parallel/data_parallel_state.h"
#include "torch/device/device_arithmetic.h"
#include "torch/model/gradient_hooks.h"
#include "torch/model/weighted_mean.h"
#include "torch/split/noted_rows.h"
#include "torch/split/split_layers.h"
#include "tutti/error.h"

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
void require_free(const WrappedModel& model, const SplitLayers& layers, const std::string& name) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    ParameterHooks::require_free(model.tensor(p), model.label(p));
  }
  for (const auto& [parameter, tensor] : layers.parameters) {
    ParameterHooks::require_free(tensor,
                                 fmt::format("parameter \"{}\" of \"{}\"", parameter, name));
  }
}

/// What engines do not add up.
void require_fast(const WrappedModel& model, const SplitLayers& layers,
                  const DataParallelOptions& options) {
  if (options.sum != Sum::fast) return;
  const auto refuse = [&](const std::string& what) {
    throw Unsupported(
        fmt::format("Sum::fast of \"{}\" takes dense gradients alone: {}; ask for "
                    "Sum::exact, or train without",
                    options.name, what));
  };
  if (options.compression.codec) refuse("it has a codec");
  if (!layers.parameters.empty()) refuse("it has split layers");
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.row_sparse(p)) refuse(fmt::format("\"{}\" is row-sparse", model.name(p)));
    if (model.owner(p) >= 0) refuse(fmt::format("\"{}\" has an owner", model.name(p)));
  }
  if (options.engine || model.device().is_cuda()) return;
  throw InvalidArgument(
      fmt::format("Sum::fast of \"{}\", which is on {}, needs an engine: "
                  "{{.engine = tutti::c10d_engine(backend)}}",
                  options.name, model.device().str()));
}

}  // namespace

/// What is not offered for a model on a device yet.
void require_offered(const WrappedModel& model, const SplitLayers& layers,
                     const DataParallelOptions& options) {
  if (model.device().is_cpu()) return;
  if (options.deterministic) require_deterministic(model.device(), options.name);
  const auto refuse = [&](std::string_view what) {
    throw Unsupported(
        fmt::format("\"{}\" is on {}, where {} not offered: train it on the CPU, or "
                    "without",
                    options.name, model.device().str(), what));
  };
  if (options.compression.codec) refuse("codecs are");
  if (!layers.parameters.empty()) refuse("split layers are");
  if (model.owned() > 0) refuse("parameters with an owner (placement) are");
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.row_sparse(p)) refuse("row-sparse gradients are");
  }
}

/// `group_of` is called once all options are checked for `workers` workers: until then no worker
/// waits for this one.
void DataParallel::start(const std::function<Group()>& group_of, int workers, WrappedModel model,
                         SplitLayers layers, const DataParallelOptions& options) {
  require_options(options);
  deadline_ = options.deadline;
  require_owners(model, workers);
  require_free(model, layers, options.name);
  require_offered(model, layers, options);
  require_fast(model, layers, options);
  const Group group = group_of();
  require_whole(model, group, "DataParallel");
  state_ = std::make_shared<DataParallelState>(group, std::move(model), std::move(layers), options);
  state_->attach();
}

DataParallel::DataParallel(const Job& job, torch::nn::Module& module,
                           const DataParallelOptions& options) {
  auto layers = find_split_layers(module, all_ranks(job));
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

DataParallelState& DataParallel::state() const {
  if (!state_) throw InvalidArgument("this DataParallel was moved from");
  return *state_;
}

void DataParallel::next_weight(double weight) { state().next_weight(weight); }

Accumulation DataParallel::accumulate(const AccumulateOptions& options) {
  state().open_scope(options);
  return {state_, options};
}

void DataParallel::synchronize(std::optional<double> weight) { state().synchronize(weight); }

std::int64_t DataParallel::join(const std::function<void()>& update) {
  return state().join(update);
}

bool DataParallel::stopped() const { return state_ && state_->stopped(); }

void DataParallel::fail(const std::string& why) {
  if (state_) state_->fail(why);
}

void DataParallel::sync_buffers() { state().sync_buffers(); }

double DataParallel::mean(double value, double weight) const {
  return mean(torch::tensor(value, torch::kFloat64), weight).item<double>();
}

torch::Tensor DataParallel::mean(const torch::Tensor& value, double weight) const {
  if (state().scope() != 0) {
    throw InvalidArgument("mean() inside an accumulation scope: call it before or after");
  }
  auto result =
      weighted_mean(group(), value, weight, deadline_,
                    [&](const std::function<void()>& calls) { state_->collectively(calls); });
  state_->use();
  return result;
}

void DataParallel::broadcast_placed() { state().broadcast_placed(); }

std::vector<std::string> DataParallel::touched() const { return state().touched(); }
const StepReport& DataParallel::report() const { return state().report(); }
TrafficReport DataParallel::traffic() const { return state().traffic(); }
std::size_t DataParallel::bytes_held() const {
  return state().exchange().nodes().leaves().bytes_held();
}
const Group& DataParallel::group() const { return state().exchange().group(); }

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
