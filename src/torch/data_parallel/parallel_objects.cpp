#include "torch/data_parallel/parallel_objects.h"

#include <fmt/format.h>

#include <utility>

#include "base/log_line.h"
#include "comm/group_state.h"
#include "memory/memory_need.h"
#include "torch/data_parallel/data_parallel_settings.h"
#include "torch/data_parallel/step_parts.h"
#include "torch/model/threads.h"
#include "tutti/tensors.h"

namespace tutti {

ParallelObjects::ParallelObjects(const Group& own_group, WrappedModel own_model, SplitLayers layers,
                                 const DataParallelOptions& own_options)
    : group(own_group), model(std::move(own_model)), options(own_options), memory(model.memory()) {
  pin_threads(*group.state());
  auto settings = settings_of(options);
  const auto exchange_options = exchange_options_of(options, model, layers);
  // Before anything is sent: a layer that is another's already is refused.
  split = std::make_unique<SplitGradients>(std::move(layers), options.name);
  settings.emplace_back("modules", std::to_string(exchange_options.modules));
  exchange = std::make_unique<StepExchange>(group, model.plan(settings), exchange_options);
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
  exchange->leaves().first_look().start();
  dense = std::make_unique<DenseGradients>(*exchange);
  rows = std::make_unique<RowGradients>(*exchange);
  if (coded) sources.push_back(coded.get());
  sources.insert(sources.end(), {dense.get(), rows.get()});
  placed = std::make_unique<PlacedParameters>(model, *exchange, *rows);
  exchange->protocol().number_next(options.first_step);
  warn_of_unmatched(model, options.name, group);
  send_from_first_rank(group, model.parameters(), options.deadline);
  send_from_first_rank(group, model.buffers(), options.deadline);
  views = std::make_unique<GradientViews>(model, *exchange);
  intake = std::make_unique<GradientIntake>(model, *exchange, *views, sources);
  list_step_parts();
  if (group.rank() != 0) return;
  log_info(
      fmt::format("data parallel: {} parameters, {} workers; TUTTI_LOG=debug shows all settings",
                  model.parameters().size(), group.size()));
  log_debug(text());
}

/// Each phase of a step calls them in this order.
void ParallelObjects::list_step_parts() {
  if (coded) {
    step_parts.add<MessageSumsStepPart>(*exchange, *coded);
  } else {
    step_parts.add<NodeSumsStepPart>(*exchange);
  }
  step_parts.add<SourcesStepPart>(sources);
  step_parts.add<RowTensorsStepPart>(model, *exchange, *rows, *placed, *views);
  step_parts.add(*placed);
  step_parts.add<ViewsStepPart>(*views, *placed);
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
      model.parameters().size(), exchange->nodes().bytes_held(), group.size(),
      text_of(settings_of(options)), own);
}

}  // namespace tutti
