#pragma once

// Parameters of a DataParallel that one worker alone updates: who gets their gradients, and what
// has to be sent once it has updated them.
//
// Threads: one. Failure: InvalidArgument where a step begins before that was sent; that of the
// exchange.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sync/rows/row_gradients.h"
#include "sync/step/slice_fold.h"
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

  /// This worker gets its gradient.
  bool is_mine(std::size_t parameter) const {
    const auto owner = model_.owner(parameter);
    return owner < 0 || owner == exchange_.group().rank();
  }
  /// Folds the dense ones that are this worker's, and notes what was touched.
  void apply(const StepFacts& step) override;
  /// What was touched has to be sent.
  void commit(StepFacts& step) override;
  void require_sent() const;
  /// Collective, where something is to be sent. InvalidArgument where nothing has an owner.
  void send(const std::optional<std::chrono::milliseconds>& deadline);
  /// What send() sent, a line for each parameter with an owner.
  TrafficReport traffic() const;

 private:
  const WrappedModel& model_;
  StepExchange& exchange_;
  SliceFold slices_;
  const RowGradients& rows_;
  std::vector<std::uint32_t> owned_;  ///< ascending
  TrafficCount traffic_;              ///< a group for each
  /// In the current step, and in the last one until it is sent; of row-sparse ones the rows.
  std::map<std::uint32_t, std::vector<std::int64_t>> touched_;
  std::map<std::uint32_t, std::vector<std::int64_t>> unsent_;
};

}  // namespace tutti
