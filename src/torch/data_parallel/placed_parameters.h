#pragma once

// The parameters of a DataParallel that one worker, their owner, updates alone. Their owner gets
// the gradient, and sends what it has updated: unlike in a Trainer, every worker has a copy.
//
// Threads: one. Failure: InvalidArgument where a step begins before the last one's updates were
// sent; that of the exchange.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sync/nodes/slice_fold.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "sync/step/traffic_count.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

class PlacedParameters : public StepPart {
 public:
  /// Keeps references.
  PlacedParameters(const WrappedModel& model, StepExchange& exchange, const RowGradients& rows);

  /// Warns where the last update was not sent.
  ~PlacedParameters() override;
  PlacedParameters(const PlacedParameters&) = delete;
  PlacedParameters& operator=(const PlacedParameters&) = delete;

  /// Folds the dense gradients of which this worker is the owner, and notes what was touched.
  void apply(const StepFacts& step) override;
  /// What was touched has to be sent from now on.
  void commit(StepFacts& step) override;
  /// Throws where the last step's updates were not sent.
  void require_sent() const;
  /// Each owner sends what it updated in the last step. Collective, unless there is nothing to
  /// send. InvalidArgument where nothing has an owner.
  void send(const std::optional<std::chrono::milliseconds>& deadline);
  /// Adds what send() sent, with a line for each parameter that has an owner.
  void add_traffic(TrafficReport& report) const override;

 private:
  const WrappedModel& model_;
  StepExchange& exchange_;
  SliceFold slices_;
  const RowGradients& rows_;
  std::vector<std::uint32_t> owned_;  ///< ascending
  TrafficCount traffic_;              ///< a bucket for each
  /// By parameter, with the rows of a row-sparse one: what the current step touched, and what the
  /// last one touched, until it is sent.
  std::map<std::uint32_t, std::vector<std::int64_t>> touched_;
  std::map<std::uint32_t, std::vector<std::int64_t>> unsent_;
};

}  // namespace tutti
