#pragma once

// What takes part in a step of a DataParallel, beside classes that are parts themselves:
// StepWeights, PlacedParameters, ParameterGradients, SplitGradients.
//
// Threads: the one of the step. Failure: StepPart's; a gradient that a codec cannot send refuses
// the step.

#include <optional>
#include <utility>
#include <vector>

#include "sync/coded/coded_gradients.h"
#include "sync/rows/row_gradients.h"
#include "sync/step/gradient_source.h"
#include "sync/step/owned_ranges.h"
#include "sync/step/step_exchange.h"
#include "sync/step/step_part.h"
#include "torch/data_parallel/parameter_gradients.h"
#include "torch/model/random_state.h"
#include "torch/model/wrapped_model.h"

namespace tutti {

/// The model is the one that was wrapped, as it was, and what of it others compare is noted.
class WrappedModelStepPart : public StepPart {
 public:
  /// Keeps references. `host` is null where the model is on the CPU, here and below.
  WrappedModelStepPart(const WrappedModel& model, const HookedParameters& hooked,
                       StepExchange& exchange, ModelMemory& memory,
                       const RandomStateMark& generator, HostCopies* host)
      : model_(model),
        hooked_(hooked),
        exchange_(exchange),
        memory_(memory),
        generator_(generator),
        host_(host) {}
  void publish() override;

 private:
  const WrappedModel& model_;
  const HookedParameters& hooked_;
  StepExchange& exchange_;
  ModelMemory& memory_;
  const RandomStateMark& generator_;
  HostCopies* host_;
};

/// Buffers become those of the worker whose count, where they are synchronised.
class CommonBuffersStepPart : public StepPart {
 public:
  /// Keeps references.
  CommonBuffersStepPart(StepExchange& exchange, const ModelMemory& memory,
                        const NamedTensors& buffers, HostCopies* host)
      : exchange_(exchange), memory_(memory), buffers_(buffers), host_(host) {}
  void apply(const StepFacts&) override { exchange_.model().take_buffers(memory_); }
  void commit(StepFacts& step) override;

 private:
  StepExchange& exchange_;
  const ModelMemory& memory_;
  const NamedTensors& buffers_;
  HostCopies* host_;
};

/// The sum of all workers' gradients, where each of them reads it.
class SumsStepPart : public StepPart {
 public:
  /// `coded` is null without a codec. Keeps references.
  SumsStepPart(StepExchange& exchange, CodedGradients* coded);
  void apply(const StepFacts& step) override;

 private:
  StepExchange& exchange_;
  CodedGradients* coded_;
  std::optional<OwnedRanges> owned_;  ///< of messages
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
                     ParameterGradients& gradients)
      : model_(model),
        exchange_(exchange),
        rows_(rows),
        owned_(exchange, rows),
        gradients_(gradients) {}
  void judge(StepFacts& step) override;
  void apply(const StepFacts& step) override;

 private:
  const WrappedModel& model_;
  StepExchange& exchange_;
  RowGradients& rows_;
  OwnedRanges owned_;
  ParameterGradients& gradients_;
};

}  // namespace tutti
