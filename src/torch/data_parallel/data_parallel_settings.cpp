#include "torch/data_parallel/data_parallel_settings.h"

#include <fmt/format.h>

#include "torch/model/arithmetic.h"
#include "torch/model/divide.h"
#include "torch/model/module_modes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::string_view name_of(Buffers buffers) {
  switch (buffers) {
    case Buffers::every_step:
      return "every step";
    case Buffers::on_request:
      return "on request";
    case Buffers::never:
      return "never";
  }
  return "";
}

std::string text_of_sum(const DataParallelOptions& options) {
  if (options.sum == Sum::exact) return "exact";
  if (!options.engine) return "fast, by nccl";
  return "fast, by " + options.engine->name() +
         (options.engine->has_ended() ? ", which has been aborted" : "");
}

}  // namespace

Settings settings_of(const DataParallelOptions& options) {
  return {
      {"wrapper", "DataParallel"},
      {"name", options.name},
      {"torch", TORCH_VERSION},
      {"instruction set", instruction_set()},
      {"intra-op threads", std::to_string(at::get_num_threads())},
      {"divide", std::string(name_of(options.divide))},
      {"sum", text_of_sum(options)},
      {"buffers", std::string(name_of(options.buffers))},
      {"out_of_data", options.out_of_data == OutOfData::participate ? "participate" : "stop all"},
      {"fusion", std::to_string(options.fusion)},
      {"first_fusion", std::to_string(options.first_fusion)},
      {"codec", text_of(options.compression)},
      {"first_step", std::to_string(options.first_step)},
      {"message_format", std::string(name_of(options.compression.message_format))},
      {"desync_check_every", std::to_string(options.desync_check_every)}};
}

void require_options(const DataParallelOptions& options) {
  if (options.fusion < 1 || options.first_fusion < 1) {
    throw InvalidArgument("fusion and first_fusion must be at least 1");
  }
  if (options.engine && options.sum != Sum::fast) {
    throw InvalidArgument("an engine is given, which adds up gradients with Sum::fast alone");
  }
  validate(options.compression);
  require_first_step(options.first_step);
  if (options.desync_check_every < 0)
    throw InvalidArgument("desync_check_every must not be negative");
  require_deadline(options.deadline);
}

void require_owners(const WrappedModel& model, int workers) {
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    if (model.owner(p) < workers) continue;
    throw InvalidArgument(fmt::format("\"{}\" is owned by rank {}: there are ranks 0 to {}",
                                      model.name(p), model.owner(p), workers - 1));
  }
}

ExchangeOptions exchange_options_of(const DataParallelOptions& options, const WrappedModel& model,
                                    const SplitLayers& layers, ForTiles for_tiles) {
  std::vector<int> owners;
  for (std::size_t p = 0; p < model.parameters().size(); ++p) {
    owners.push_back(static_cast<int>(model.owner(p)));
  }
  return {
      .name = options.name,
      .divisor = divisor_of(options.divide),
      .fusion = options.fusion,
      .first_fusion = options.first_fusion,
      .owners = std::move(owners),
      .coded = options.compression.codec != nullptr,
      .sync_buffers = options.buffers == Buffers::every_step,
      // Every worker is a logical worker, and its gradients become messages where it is.
      .stays = [is_coded = options.compression.codec != nullptr](
                   const PlanEntry& parameter, int /*worker*/,
                   std::int64_t /*leaf*/) { return is_coded && parameter.is_partitioned(); },
      .for_tiles = std::move(for_tiles),
      .desync_check_every = options.desync_check_every,
      .modules = model.module() != nullptr ? modes_of(*model.module()).size() : 0,
      .module_name = [module = model.module()](std::size_t k) { return module_text(*module, k); },
      .deadline = options.deadline,
      .hint =
          "; a worker whose backward reached no parameter, or that ran none, has to call "
          "synchronize()",
      .end_hint =
          "; a worker that has no more data while others have calls join(), one whose backward "
          "reached no parameter synchronize(); what else ends a loop (mean() of a loss, not its "
          "own) has to be the same on all workers",
      .hint_without_gradient =
          layers.weighted.empty()
              ? ""
              : "; the model has layers that are computed by all workers together, and join() and "
                "synchronize() do not call them: a worker that has no data calls forward() and "
                "backward() with an empty batch of weight 0 while others have some"};
}

}  // namespace tutti
