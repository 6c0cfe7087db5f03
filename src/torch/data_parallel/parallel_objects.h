#pragma once

// What a DataParallel is made of: every object behind it, made in the order in which they need each
// other, and the list of what takes part in a step. A new feature is made here, and is a line in
// the list.
//
// Threads: one. Failure: what making each of them throws; collective.

#include <memory>
#include <string>
#include <vector>

#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/dense_gradients.h"
#include "sync/step/gradient_source.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/data_parallel/parameter_gradients.h"
#include "torch/data_parallel/placed_parameters.h"
#include "torch/data_parallel/split_gradients.h"
#include "torch/data_parallel/step_weights.h"
#include "torch/device/device_arithmetic.h"
#include "torch/model/random_state.h"
#include "torch/model/wrapped_model.h"
#include "torch/sums/fast_gradients.h"
#include "tutti/data_parallel.h"

namespace tutti {

struct ParallelObjects {
  ParallelObjects(const Group& own_group, WrappedModel own_model, SplitLayers layers,
                  const DataParallelOptions& own_options);
  ParallelObjects(const ParallelObjects&) = delete;
  ParallelObjects& operator=(const ParallelObjects&) = delete;

  /// Hooks all parameters, which tell `sink`.
  void hook(const std::weak_ptr<GradientSink>& sink);
  /// The program goes on without this object, which it has used in a step or not.
  void end(bool is_used) noexcept;

  Group group;
  WrappedModel model;
  DataParallelOptions options;
  std::unique_ptr<DeterministicAlgorithms> deterministic;  ///< null on the CPU, or if not asked for
  std::unique_ptr<HostCopies> host;                        ///< null where the model is on the CPU
  ModelMemory memory;                                      ///< the model's, or that of these copies
  RandomStateMark generator{model.device()};
  std::unique_ptr<StepExchange> exchange;
  std::unique_ptr<CodedGradients> coded;  ///< null without a codec
  std::unique_ptr<DenseGradients> dense;
  std::unique_ptr<RowGradients> rows;
  std::unique_ptr<FastGradients> fast;   ///< null but with Sum::fast
  std::vector<GradientSource*> sources;  ///< these but the last; traffic is reported in this order
  std::unique_ptr<PlacedParameters> placed;
  std::unique_ptr<StepWeights> weights;
  std::unique_ptr<ParameterGradients> gradients;
  std::unique_ptr<SplitGradients> split;
  HookedParameters hooked;  ///< the model's, then the split ones
  StepParts step_parts;

 private:
  void list_step_parts();
  std::string text() const;
};

}  // namespace tutti
