#pragma once

// What takes part in a step of a DataParallel, beside PlacedParameters.
//
// Threads: the one of the step. Failure: StepPart's; a gradient that a codec cannot send is
// Diverged, on all workers.

#include <vector>

#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/gradient_source.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/data_parallel/gradient_views.h"
#include "torch/data_parallel/placed_parameters.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

/// The way of the gradients, from their sources to where all workers read them.
class GradientsPart : public StepPart {
 public:
  /// `coded` may be null. Keeps references.
  GradientsPart(StepExchange& exchange, std::vector<GradientSource*> sources, CodedGradients* coded,
                RowGradients& rows)
      : exchange_(exchange), sources_(std::move(sources)), coded_(coded), rows_(rows) {}
  void judge(StepFacts& step) override;
  void apply(const StepFacts& step) override;
  void commit(StepFacts& step) override;

 private:
  StepExchange& exchange_;
  std::vector<GradientSource*> sources_;
  CodedGradients* coded_;
  RowGradients& rows_;
};

/// Row-sparse gradients become tensors of this worker's.
class RowTensorsPart : public StepPart {
 public:
  RowTensorsPart(const WrappedModel& model, const StepExchange& exchange, const RowGradients& rows,
                 const PlacedParameters& placed, GradientViews& views)
      : model_(model), exchange_(exchange), rows_(rows), placed_(placed), views_(views) {}
  void apply(const StepFacts& step) override;

 private:
  const WrappedModel& model_;
  const StepExchange& exchange_;
  const RowGradients& rows_;
  const PlacedParameters& placed_;
  GradientViews& views_;
};

/// The reduced gradients become those that the program's optimizer sees.
class ViewsPart : public StepPart {
 public:
  ViewsPart(GradientViews& views, const PlacedParameters& placed)
      : views_(views), placed_(placed) {}
  void commit(StepFacts& step) override;
  void drop() noexcept override { views_.drop(); }

 private:
  GradientViews& views_;
  const PlacedParameters& placed_;
};

}  // namespace tutti
