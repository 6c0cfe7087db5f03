#pragma once

// The options of a DataParallel, checked and resolved: what the step exchange is told, and what all
// workers must have in common.
//
// Threads: any. Failure: InvalidArgument names the option.

#include <string>
#include <utility>
#include <vector>

#include "sync/step/step_exchange.h"
#include "torch/model/settings.h"
#include "torch/model/wrapped_model.h"
#include "torch/split/split_layers.h"
#include "tutti/data_parallel.h"

namespace tutti {

void require_options(const DataParallelOptions& options);
ExchangeOptions exchange_options_of(const DataParallelOptions& options, const WrappedModel& model,
                                    const SplitLayers& layers, ForTiles for_tiles);
/// Throws InvalidArgument where an owner is not a rank below `workers`.
void require_owners(const WrappedModel& model, int workers);
/// The settings besides the model that have to be the same on all workers.
Settings settings_of(const DataParallelOptions& options);

}  // namespace tutti
