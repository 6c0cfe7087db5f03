#include "torch/data_parallel/parallel_objects.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/log_line.h"
#include "comm/group_state.h"
#include "memory/memory_need.h"
#include "torch/data_parallel/data_parallel_settings.h"
#include "torch/data_parallel/step_parts.h"
#include "torch/gradients/fold_threads.h"
#include "torch/model/threads.h"
#include "tutti/error.h"
#include "tutti/tensors.h"

namespace tutti {

ParallelObjects::ParallelObjects(const Group& own_group, WrappedModel own_model, SplitLayers layers,
                                 const DataParallelOptions& own_options)
    : group(own_group), model(std::move(own_model)), options(own_options) {
  pin_threads(*group.state());
  if (!model.device().is_cpu()) {
    if (options.deterministic) deterministic = std::make_unique<DeterministicAlgorithms>();
    host = std::make_unique<HostCopies>(model, group, options.deadline, options.name);
  }
  memory = host ? host->memory() : model.memory();
  auto settings = settings_of(options);
  const bool is_fast = options.sum == Sum::fast;
  // A model on the CPU has its processors busy with gradients meanwhile.
  const int threads = host && !is_fast ? fold_threads(*group.state()) : 1;
  const auto exchange_options = exchange_options_of(options, model, layers, tiles_on(threads));
  // Before anything is sent: a layer that is another's already is refused.
  split = std::make_unique<SplitGradients>(std::move(layers), options.name);
  settings.emplace_back("modules", std::to_string(exchange_options.modules));
  exchange = std::make_unique<StepExchange>(group, model.plan(settings, is_fast), exchange_options);
  if (options.compression.codec) {
    coded = std::make_unique<CodedGradients>(
        *exchange, CodingOptions{.compression = options.compression,
                                 .divisor = exchange->nodes().divisor(),
                                 .name = options.name,
                                 .values = [this](std::uint32_t p) -> ParameterValues {
                                   return {
                                       static_cast<const std::byte*>(model.tensor(p).data_ptr()),
                                       exchange->plan().parameters()[p].spec.dtype};
                                 }});
  }
  if (host) tell_of_shared_devices(group, model.device());
  exchange->leaves().first_look().start();
  dense = std::make_unique<DenseGradients>(*exchange);
  rows = std::make_unique<RowGradients>(*exchange);
  if (coded) sources.push_back(coded.get());
  sources.insert(sources.end(), {dense.get(), rows.get()});
  if (is_fast) {
    auto engine = options.engine ? options.engine : nccl_engine(group, model.device());
    fast = std::make_unique<FastGradients>(model, *exchange, std::move(engine));
  }
  placed = std::make_unique<PlacedParameters>(model, *exchange, *rows);
  exchange->protocol().number_next(options.first_step);
  warn_of_unmatched(model, options.name, group);
  send_from_first_rank(group, model.parameters(), options.deadline);
  send_from_first_rank(group, model.buffers(), options.deadline);
  weights = std::make_unique<StepWeights>(exchange->protocol());
  gradients =
      std::make_unique<ParameterGradients>(model, *exchange, sources, host.get(), fast.get());
  list_step_parts();
  if (group.rank() != 0) return;
  std::string on;
  if (host) {
    on = fmt::format(" on {}{}", host->device().device().str(),
                     deterministic
                         ? ", deterministic operators alone (DataParallelOptions::deterministic)"
                         : "");
    if (!is_fast) {
      on += fmt::format(", sums by {} thread{} of the host", threads, threads == 1 ? "" : "s");
    }
  }
  log_info(
      fmt::format("data parallel: {} parameters, {} workers{}; TUTTI_LOG=debug shows all settings",
                  model.parameters().size(), group.size(), on));
  log_debug(text());
}

void ParallelObjects::hook(const std::weak_ptr<GradientSink>& sink) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    hooked.add(model.tensor(p), model.label(p), sink);
  }
  split->hook(hooked, sink);
}

/// Nobody waits here, and nothing is thrown: what went wrong in silence is logged.
void ParallelObjects::end(bool is_used) noexcept {
  if (std::uncaught_exceptions() > 0 || !group.state()->job().is_own()) return;
  try {
    if (!is_used && group.rank() == 0) {
      log_warning(fmt::format(
          "the DataParallel of \"{}\" has ended without a step: it has to live as long "
          "as the model is trained, and backward() has to reach it (autograd::grad() does "
          "not: call synchronize()), or each worker trains a model of its own",
          options.name));
    }
    if (group.size() > 1) {
      const auto count = model.parameters().size();
      hooked.leave(0, count,
                   fmt::format("a backward reaches parameters of \"{}\", whose DataParallel has "
                               "ended: these gradients "
                               "are this worker's alone",
                               options.name));
      hooked.leave(
          count, hooked.size(),
          fmt::format(
              "a backward reaches split parameters of \"{}\", whose DataParallel has ended: these "
              "gradients are sums over the workers",
              options.name));
    }
    model.require_all_in_place();
    if (host && exchange->model().compares()) host->fetch_parameters();
  } catch (const std::exception&) {
    return;  // the parameters are others by now
  }
  if (const auto difference = exchange->model().part(memory)) {
    log_warning(*difference +
                " as its DataParallel ended: the updates were not the same on all workers, or one "
                "has changed its model since");
  }
}

/// Each phase of a step calls them in this order.
void ParallelObjects::list_step_parts() {
  step_parts.add<WrappedModelStepPart>(model, hooked, *exchange, memory, generator, host.get());
  step_parts.add(*weights);
  step_parts.add<CommonBuffersStepPart>(*exchange, memory, model.buffers(), host.get());
  step_parts.add<SumsStepPart>(*exchange, coded.get());
  step_parts.add<SourcesStepPart>(sources);
  if (fast) step_parts.add(*fast);
  step_parts.add<RowTensorsStepPart>(model, *exchange, *rows, *gradients);
  step_parts.add(*placed);
  step_parts.add(*gradients);
  step_parts.add(*split);
}

std::string ParallelObjects::text() const {
  std::string own;
  if (coded) {
    own = fmt::format(", {} for messages and residuals of each worker",
                      format_bytes(coded->bytes_per_logical_worker() + coded->bytes_per_worker()));
  }
  if (!rows->parameters().empty()) {
    own += fmt::format(", {} row-sparse parameters", rows->parameters().size());
  }
  if (split->size() > 0) own += fmt::format(", {} split parameters", split->size());
  if (model.owned() > 0) own += fmt::format(", {} parameters with an owner", model.owned());
  return fmt::format(
      "all settings of data parallel: {} parameters, {} gradient bytes per worker, {} workers{}{}",
      model.parameters().size(), exchange->nodes().leaves().bytes_held(), group.size(),
      text_of(settings_of(options)), own);
}

}  // namespace tutti
