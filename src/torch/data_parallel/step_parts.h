#pragma once

// What takes part in a step of a DataParallel, beside PlacedParameters.
//
// Threads: the one of the step. Failure: StepPart's; a gradient that a codec cannot send refuses
// the step.

#include <utility>
#include <vector>

#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/gradient_source.h"
#include "sync/step/owned_ranges.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/data_parallel/gradient_views.h"
#include "torch/data_parallel/placed_parameters.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

/// The sum of all workers' nodes, where each of them reads it.
class NodeSumsStepPart : public StepPart {
 public:
  explicit NodeSumsStepPart(StepExchange& exchange) : exchange_(exchange) {}
  void apply(const StepFacts&) override { exchange_.fold_slices(); }

 private:
  StepExchange& exchange_;
};

/// The same of messages.
class MessageSumsStepPart : public StepPart {
 public:
  /// Keeps references.
  MessageSumsStepPart(const StepExchange& exchange, CodedGradients& coded)
      : exchange_(exchange), coded_(coded), owned_(exchange, coded) {}
  void apply(const StepFacts& step) override;

 private:
  const StepExchange& exchange_;
  CodedGradients& coded_;
  OwnedRanges owned_;
};

/// What sources of gradients prepare and count. After the part that adds them up.
class SourcesStepPart : public StepPart {
 public:
  /// Keeps references.
  explicit SourcesStepPart(std::vector<GradientSource*> sources) : sources_(std::move(sources)) {}
  void judge(StepFacts& step) override;
  void apply(const StepFacts& step) override;
  void commit(StepFacts& step) override;
  void add_traffic(TrafficReport& report) const override { report = traffic_of(sources_); }

 private:
  std::vector<GradientSource*> sources_;
};

/// Row-sparse gradients become tensors of this worker's: each worker folds its share of the touched
/// rows, and reads those of all. After SourcesStepPart.
class RowTensorsStepPart : public StepPart {
 public:
  /// Keeps references.
  RowTensorsStepPart(const WrappedModel& model, StepExchange& exchange, RowGradients& rows,
                     const PlacedParameters& placed, GradientViews& views)
      : model_(model),
        exchange_(exchange),
        rows_(rows),
        owned_(exchange, rows),
        placed_(placed),
        views_(views) {}
  void judge(StepFacts& step) override;
  void apply(const StepFacts& step) override;

 private:
  const WrappedModel& model_;
  StepExchange& exchange_;
  RowGradients& rows_;
  OwnedRanges owned_;
  const PlacedParameters& placed_;
  GradientViews& views_;
};

/// The reduced gradients become those that the program's optimizer sees.
class ViewsStepPart : public StepPart {
 public:
  ViewsStepPart(GradientViews& views, const PlacedParameters& placed)
      : views_(views), placed_(placed) {}
  void commit(StepFacts& step) override;
  void drop() noexcept override { views_.drop(); }

 private:
  GradientViews& views_;
  const PlacedParameters& placed_;
};

}  // namespace tutti
